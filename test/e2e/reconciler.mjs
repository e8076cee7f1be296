// The reconciler: it is handed what is unknown, asks the generator's ledger by
// the key that was sent with the call, and writes down what it found.

import { setTimeout as sleep } from 'node:timers/promises';
import { tell, told, word } from './lib/child.mjs';
import { Database } from './lib/database.mjs';
import { exchangeJson, NoAnswer } from './lib/http.mjs';

// arrives: how long after a worker has lost its lease a call of it may still
// arrive, in milliseconds.
const { database, generator, arrives, patience, stepped = false } = await told();
const LEASE_MS = arrives + 6 * patience;
const db = new Database('export_worker', database, 4);

const HAND_OUT = `SELECT id, principal, operation, key, fence, idem_downstream_key(id, 'generate') AS outside_key,
  extract(epoch FROM lease_until) * 1000 AS unknown_since FROM idem_reconcile(NULL, 32, $1)`;
const RESOLVE = 'SELECT idem_resolve($1, $2, $3, $4, $5, $6)';
const FOUND = 'UPDATE finding SET found = $3 WHERE id = $1 AND fence = $2';

const handOut = () => db.transaction(async (rows) => {
  const unknown = await rows(HAND_OUT, [`${LEASE_MS} ms`]);
  for (const task of unknown) await rows('INSERT INTO finding (id, fence) VALUES ($1, $2)', [task.id, task.fence]);
  return unknown;
});

const resolve = (task, outcome, detail, also) => db.transaction(async (rows) => {
  await rows(RESOLVE, [task.operation, task.key, outcome, detail, task.principal, task.fence]);
  await rows(FOUND, [task.id, task.fence, outcome]);
  await also(rows);
});

const wasMade = (task, file) => resolve(task, 'succeeded', { file },
  (rows) => rows('UPDATE task SET file = $2 WHERE id = $1', [task.id, file]));

// The customer was told that it is accepted.  What was not executed is accepted
// again by that, and a worker gets it.
const wasNotMade = (task) => resolve(task, 'not_executed', null, async () => {});

// A question changes nothing, so it may be repeated; but not for ever, because
// the task is ours for so long only.
async function ledgerOf(task) {
  for (let tries = 0; tries < 3; tries++) {
    try {
      return (await exchangeJson(`${generator}/${task.outside_key}`, { patience })).body;
    } catch (error) {
      if (!(error instanceof NoAnswer)) throw error;
    }
  }
  return null;
}

// "There is none" means "not executed" only once no call can arrive any more.
async function reconcile(task) {
  await sleep(Number(task.unknown_since) + arrives - Date.now());
  const made = await ledgerOf(task);
  if (made === null) return;     // it stays unknown, and is handed out again
  try {
    await (made.length > 0 ? wasMade(task, made[0].file) : wasNotMade(task));
  } catch (error) {
    // ID002: its worker came back, or another reconciler had it.  All is well.
    if (error.code !== 'ID002') console.error(`reconciler: ${error.message}`);
  }
}

async function round() {
  const unknown = await handOut().catch((error) => (console.error(`reconciler: ${error.message}`), []));
  await Promise.all(unknown.map(reconcile));
  return unknown.length;
}

tell({ ready: true });
for (;;) {
  if (stepped) {
    await word();
    tell({ reconciled: await round() });
  } else if (await round() === 0) {
    await sleep(200);
  }
}
