// Drizzle over node-postgres: db.execute(sql`...`); a nested transaction() is the
// savepoint. The SQLSTATE is in error.cause, an array in sql`` is a list of parameters.
import { sql } from 'drizzle-orm';
import { drizzle } from 'drizzle-orm/node-postgres';
import pg from 'pg';
import { LAMP, story } from '../lib/story.mjs';
import { check, done, raised } from '../lib/tap.mjs';

const pool = new pg.Pool();
const drizzled = drizzle(pool);
const one = async (db, query) => (await db.execute(query)).rows[0];

const client = {
  direct: drizzled,
  transaction: (work) => drizzled.transaction(work),
  savepoint: (db, work) => db.transaction(work),
  claim: (db, key, params, lease = null) => one(db, sql`SELECT verdict, fence, result, error, retry_after, holder
    FROM idem_claim('create_order', ${key}, ${JSON.stringify(params)}, 'drizzle', lease => ${lease})`),
  complete: async (db, key, fence, result) =>
    (await one(db, sql`SELECT idem_complete_key('create_order', ${key}, ${fence}, ${JSON.stringify(result)}, 'drizzle') AS result`)).result,
  fail: (db, key, fence, error) => one(db, sql`SELECT idem_fail_key('create_order', ${key}, ${fence}, ${JSON.stringify(error)}, principal => 'drizzle')`),
  insert: async (db, order) =>
    (await one(db, sql`INSERT INTO orders (client, item, quantity) VALUES ('drizzle', ${order.item}, ${order.quantity}) RETURNING id`)).id,
  status: (db, key) => one(db, sql`SELECT state, result FROM idem_status('create_order', ${key}, 'drizzle')`),
  once: async (db, key) => (await one(db, sql`SELECT idem_once('on_payment', ${key}, 'drizzle') AS first`)).first,
  pid: async (db) => (await one(db, sql`SELECT pg_backend_pid() AS pid`)).pid,
  handle: async (db, key) => (await one(db, sql`SELECT c FROM idem_claim('create_order', ${key}, principal => 'drizzle') c`)).c,
  finish: (db, handle, result) => one(db, sql`SELECT idem_complete(${handle}, ${JSON.stringify(result)})`),
  waits: (interval) => /^00:00:0[01]/.test(interval),
  code: (error) => error.cause?.code,
  forgotten: 'transaction() rejects, .cause.code is ID003',
  nested: 'nested transaction()',
};

await story(client);
check('types: params as an object', (await one(drizzled, sql`SELECT verdict FROM idem_claim('create_order', 'k1', ${LAMP}, 'drizzle')`)).verdict, 'replay');
const list = await raised(one(drizzled, sql`SELECT idem_claim('create_order', 'k6', ${[1, 2]}, 'drizzle')`));
check('trap: an array becomes ($1, $2), which is a row: use JSON.stringify', client.code(list), '42883');
done();
await pool.end();
