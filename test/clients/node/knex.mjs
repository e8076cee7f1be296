// Knex: raw() with positional bindings; a nested transaction() is the savepoint. A list
// is no JSON, as in node-postgres below it, and a question mark is a binding.
import knex from 'knex';
import { LAMP, story } from '../lib/story.mjs';
import { check, done, raised } from '../lib/tap.mjs';

const pool = knex({ client: 'pg', connection: {} });
const one = async (db, text, values) => (await db.raw(text, values)).rows[0];

const client = {
  direct: pool,
  transaction: (work) => pool.transaction(work),
  savepoint: (db, work) => db.transaction(work),
  claim: (db, key, params, lease = null) => one(db, `SELECT verdict, fence, result, error, retry_after, holder
    FROM idem_claim('create_order', ?, ?, 'knex', lease => ?)`, [key, JSON.stringify(params), lease]),
  complete: async (db, key, fence, result) => (await one(db,
    `SELECT idem_complete_key('create_order', ?, ?, ?, 'knex') AS result`, [key, fence, JSON.stringify(result)])).result,
  fail: (db, key, fence, error) => one(db, `SELECT idem_fail_key('create_order', ?, ?, ?, principal => 'knex')`, [key, fence, JSON.stringify(error)]),
  insert: async (db, order) => (await db('orders').insert({ client: 'knex', ...order }).returning('id'))[0].id,
  status: (db, key) => one(db, `SELECT state, result FROM idem_status('create_order', ?, 'knex')`, [key]),
  once: async (db, key) => (await one(db, `SELECT idem_once('on_payment', ?, 'knex') AS first`, [key])).first,
  pid: async (db) => (await one(db, 'SELECT pg_backend_pid() AS pid')).pid,
  handle: async (db, key) => (await one(db, `SELECT c FROM idem_claim('create_order', ?, principal => 'knex') c`, [key])).c,
  finish: (db, handle, result) => one(db, 'SELECT idem_complete(?, ?)', [handle, JSON.stringify(result)]),
  waits: (interval) => interval.toPostgres() > '0',
  code: (error) => error.code,
  forgotten: 'transaction() rejects, .code is ID003',
  nested: 'nested transaction()',
};

await story(client);
check('types: params as an object', (await one(pool, `SELECT verdict FROM idem_claim('create_order', 'k1', ?, 'knex')`, [LAMP])).verdict, 'replay');
const list = await raised(one(pool, `SELECT idem_claim('create_order', 'k6', ?, 'knex')`, [[1, 2]]));
check('trap: a list becomes a PostgreSQL array, which is no JSON: use JSON.stringify', list.code, '22P02');
const member = (operator) => one(pool, `SELECT result ${operator} 'order' AS has FROM idem_status('create_order', ?, 'knex')`, ['k1']);
check("trap: the operator ? of jsonb is read as a binding", /Expected 1 bindings, saw 2/.test((await raised(member('?'))).message));
check('trap: and is itself as \\\\?', (await member('\\?')).has);
done();
await pool.destroy();
