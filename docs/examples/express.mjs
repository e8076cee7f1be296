// Express: idempotent(pool, handler) makes an endpoint happen once per Idempotency-Key.
// The handler gets the request and the transaction, returns { status, headers, body },
// and that is what is recorded and replayed. It answers no request itself.
//
//   npm install express pg
//   ALTER DATABASE shop SET search_path = public, idempotency      (a SET is one connection's)
//   CREATE TABLE orders (id int GENERATED ALWAYS AS IDENTITY, client text, item text, quantity int)
//   PGHOST=… PGDATABASE=shop PORT=8080 node express.mjs
import express from 'express';
import pg from 'pg';

const CLAIM = `SELECT verdict, fence, result, idem_http_status(c) AS status, ceil(extract(epoch FROM retry_after)) AS retry_after
  FROM idem_claim($1, $2, $3, $4) c`;
const COMPLETE = 'SELECT idem_complete_key($1, $2, $3, $4, $5) AS response';
const TITLES = {
  in_progress: 'A request with this Idempotency-Key is in progress',
  mismatch: 'This Idempotency-Key was used with another request',
  unknown: 'The outcome of the first request is not known yet',
  expired: 'This Idempotency-Key is too old',
};
const BAD_REQUEST = ['22023', '22032', '22P02', '22P05']; // no account, a key too long, params that are no JSON
const problem = (res, status, title) => res.status(status).type('application/problem+json').send(JSON.stringify({ status, title }));

export const idempotent = (pool, handler) => async (req, res) => {
  const key = req.get('Idempotency-Key')?.replace(/^"(.*)"$/, '$1');
  if (!key) return problem(res, 400, 'This endpoint needs an Idempotency-Key');
  const operation = `${req.method} ${req.route.path}`;
  const db = await pool.connect();
  let broken;
  try {
    await db.query('BEGIN');
    // Parsed and printed here each time, so that a repeat prints the same (docs/chain.md).
    const params = JSON.stringify([req.params, req.query, req.body]);
    const claim = (await db.query(CLAIM, [operation, key, params, req.account])).rows[0];
    let response = claim.result;
    if (claim.verdict === 'execute') {
      response = await attempt(db, () => handler(req, db));
      // As it was recorded: so that a replay is the same to the byte.
      ({ response } = (await db.query(COMPLETE, [operation, key, claim.fence, JSON.stringify(response), req.account])).rows[0]);
    }
    await db.query('COMMIT'); // before the first byte of the answer
    if (!response) {
      if (claim.retry_after) res.set('Retry-After', claim.retry_after);
      return problem(res, claim.status, TITLES[claim.verdict]);
    }
    if (claim.verdict === 'replay') res.set('Idempotent-Replayed', 'true');
    return res.status(response.status).set(response.headers).json(response.body);
  } catch (error) {
    broken = error;
    throw error; // nothing is recorded: the next request with this key executes
  } finally {
    if (broken) await db.query('ROLLBACK').catch(() => {});
    db.release(broken);
  }
};

// A refusal (4xx) is recorded, what was done before it is taken back.
async function attempt(db, work) {
  await db.query('SAVEPOINT work');
  const response = await work();
  if (response.status >= 400) await db.query('ROLLBACK TO SAVEPOINT work');
  return response;
}

const app = express();
app.use(express.json());
app.use((req, res, next) => { req.account = req.get('X-Account'); next(); }); // what authentication found
app.post('/orders', idempotent(new pg.Pool(), async (req, db) => {
  const { item, quantity } = req.body;
  const { id } = (await db.query('INSERT INTO orders (client, item, quantity) VALUES ($1, $2, $3) RETURNING id', [req.account, item, quantity])).rows[0];
  if (item === 'crash') throw new Error('the handler crashed');
  if (item === 'unicorn') return { status: 400, headers: {}, body: { error: 'there are no unicorns' } };
  return { status: 201, headers: { Location: `/orders/${id}` }, body: { order: id, item } };
}));
app.use((error, req, res, next) => { // no message of the database's: it is for the log
  const status = error.status ?? (BAD_REQUEST.includes(error.code) ? 400 : 500);
  problem(res, status, status < 500 ? 'The account, the key or the body is missing or wrong' : 'Try again with the same Idempotency-Key');
});
app.listen(process.env.PORT, '127.0.0.1');
