// node-postgres: all calls of a transaction go through one client. Objects become JSON,
// arrays do not; a bigint comes as a string, an interval as an object.
import pg from 'pg';
import { LAMP, story } from '../lib/story.mjs';
import { check, done, raised } from '../lib/tap.mjs';

const pool = new pg.Pool();
const one = async (db, text, values) => (await db.query(text, values)).rows[0];

async function transaction(work) {
  const db = await pool.connect();
  try {
    await db.query('BEGIN');
    const result = await work(db);
    await db.query('COMMIT');
    return result;
  } catch (error) {
    await db.query('ROLLBACK');
    throw error;
  } finally {
    db.release();
  }
}

async function savepoint(db, work) {
  await db.query('SAVEPOINT work');
  return work(db).catch(async (error) => {
    await db.query('ROLLBACK TO SAVEPOINT work');
    throw error;
  });
}

const client = {
  direct: pool,
  transaction,
  savepoint,
  claim: (db, key, params, lease) => one(db, `SELECT verdict, fence, result, error, retry_after, holder
    FROM idem_claim('create_order', $1, $2, 'node-postgres', lease => $3)`, [key, params, lease]),
  complete: async (db, key, fence, result) => (await one(db,
    `SELECT idem_complete_key('create_order', $1, $2, $3, 'node-postgres') AS result`, [key, fence, JSON.stringify(result)])).result,
  fail: (db, key, fence, error) => one(db, `SELECT idem_fail_key('create_order', $1, $2, $3, principal => 'node-postgres')`, [key, fence, error]),
  insert: async (db, order) => (await one(db,
    `INSERT INTO orders (client, item, quantity) VALUES ('node-postgres', $1, $2) RETURNING id`, [order.item, order.quantity])).id,
  status: (db, key) => one(db, `SELECT state, result FROM idem_status('create_order', $1, 'node-postgres')`, [key]),
  once: async (db, key) => (await one(db, `SELECT idem_once('on_payment', $1, 'node-postgres') AS first`, [key])).first,
  pid: (db) => db.processID,
  handle: async (db, key) => (await one(db, `SELECT c FROM idem_claim('create_order', $1, principal => 'node-postgres') c`, [key])).c,
  finish: (db, handle, result) => one(db, 'SELECT idem_complete($1, $2)', [handle, JSON.stringify(result)]),
  waits: (interval) => interval.toPostgres() > '0',
  code: (error) => error.code,
  forgotten: "the query 'COMMIT' rejects, .code is ID003",
  nested: 'SAVEPOINT',
};

await story(client);
const fresh = await client.claim(pool, 'k6', LAMP, '5 s');
const array = `SELECT idem_complete_key('create_order', 'k6', $1, $2, 'node-postgres')`;
check('trap: an array becomes a PostgreSQL array, which is no JSON', (await raised(one(pool, array, [fresh.fence, [1, 2]]))).code, '22P02');
await one(pool, array, [fresh.fence, []]);
check('trap: an empty one is taken for {}: use JSON.stringify', (await client.status(pool, 'k6')).result, {});
const apart = await raised(one(pool, `SELECT verdict FROM idem_claim('create_order', 'k7', principal => 'node-postgres')`));
check('trap: pool.query() is a transaction of its own: a claim without lease ends at once', apart.code, 'ID003');
done();
await pool.end();
