// The leased way: pay() claims with a lease, commits, calls the provider in no transaction and
// records what came back; reconcile() finds out what became of a call of which nobody knows.
// leased_service.mjs starts them, and says what they need.
import { setTimeout } from 'node:timers/promises';
import pg from 'pg';

const CLAIM = `SELECT verdict, id, fence, result, error, idem_http_status(c) AS status, ceil(extract(epoch FROM retry_after)) AS retry_after,
  idem_downstream_key(id, 'charge') AS charge_key FROM idem_claim('pay', $1, $2, $3, lease => '30 s') c`;
const HOLD = 'INSERT INTO payment (id, amount) VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET amount = excluded.amount, charge = NULL';
const BOOK = 'UPDATE payment SET charge = $2 WHERE id = $1';
const RECONCILE = `SELECT id, key, principal, fence, amount, idem_downstream_key(id, 'charge') AS charge_key
  FROM idem_reconcile('pay', 1, '1 min') JOIN payment USING (id)`;
const OUTCOMES = { // what the owner says of it and answers, and what a reconciler says of it
  complete: [`SELECT idem_complete_key('pay', $1, $2, $3, $4)`, 200, 'succeeded'],
  fail: [`SELECT idem_fail_key('pay', $1, $2, $3, principal => $4)`, 422, 'failed'],
  release: [`SELECT idem_release_key('pay', $1, $2, $4, make_interval(secs => ($3::jsonb->>'retry_after')::int))`, 503],
  unsure: [`SELECT idem_unsure_key('pay', $1, $2, $3, $4)`, 409],
};
const seconds = (header) => Math.min(Math.max(Math.ceil(Number(header)) || 1, 1), 3600); // whatever it says; a date counts as 1
const pool = new pg.Pool();

async function transaction(work) {
  const db = await pool.connect();
  let broken = true;
  try {
    await db.query('BEGIN');
    const done = await work(async (sql, ...values) => (await db.query(sql, values)).rows[0]);
    await db.query('COMMIT');
    broken = false;
    return done;
  } finally {
    db.release(broken); // it is closed then, and the transaction rolled back
  }
}

// Calls the provider; what comes back decides, as in the table of docs/uncertain.md.
async function charge(key, amount) {
  const headers = { 'Content-Type': 'application/json', 'Idempotency-Key': key };
  const signal = AbortSignal.timeout(10_000); // shorter than the lease
  try {
    const answer = await fetch(`${process.env.PROVIDER}/charges`, { method: 'POST', headers, body: JSON.stringify({ amount }), signal });
    if ([429, 503].includes(answer.status)) return ['release', { retry_after: seconds(answer.headers.get('Retry-After')) }];
    if ([402, 422].includes(answer.status)) return ['fail', await answer.json()];
    return answer.ok ? ['complete', await answer.json()] : ['unsure', { http: answer.status }];
  } catch (error) { // nothing was sent; or nobody knows: a time-out, a lost connection, half an answer
    return ['ECONNREFUSED', 'ENOTFOUND'].includes(error.cause?.code) ? ['release', { retry_after: 1 }] : ['unsure', { error: error.name }];
  }
}

export async function pay(account, key, amount) {
  const claim = await transaction(async (ask) => {
    const answer = await ask(CLAIM, key, JSON.stringify({ amount }), account);
    if (answer.verdict === 'execute') await ask(HOLD, answer.id, amount); // for the reconciler: the record keeps no params
    return answer;
  });
  if (claim.verdict !== 'execute') return claim;
  const [outcome, detail] = await charge(claim.charge_key, amount);
  const [say, status, resolution] = OUTCOMES[outcome];
  try {
    await transaction(async (ask) => {
      await ask(say, key, claim.fence, JSON.stringify(detail), account);
      await ask(BOOK, claim.id, detail.charge);
    });
  } catch (error) { // with ID002 a reconciler was faster: what it recorded is the answer
    return error.code === 'ID002' ? pay(account, key, amount) : Promise.reject(error);
  }
  return { status, result: resolution && detail, retry_after: detail.retry_after }; // what idem_unsure is told is not for the caller
}

export async function reconcile() {
  const found = await transaction((ask) => ask(RECONCILE));
  if (!found) return setTimeout(1000);
  const [outcome, detail] = await charge(found.charge_key, found.amount); // the same call again: the provider honours the key
  const [, , resolution] = OUTCOMES[outcome];
  if (resolution) await transaction(async (ask) => { // else it stays unknown, and is handed out again later
    await ask(`SELECT idem_resolve('pay', $1, $2, $3, $4, $5)`, found.key, resolution, JSON.stringify(detail), found.principal, found.fence);
    await ask(BOOK, found.id, detail.charge);
  }).catch((error) => error.code === 'ID002' || Promise.reject(error)); // its owner was faster
}
