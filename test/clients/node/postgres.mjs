// postgres.js: asks the server for the types of parameters, so jsonb takes the value
// itself, and JSON text would be quoted once more; bigint and interval come as strings.
import postgres from 'postgres';
import { LAMP, story } from '../lib/story.mjs';
import { check, done } from '../lib/tap.mjs';

const sql = postgres({ host: process.env.PGHOST });

const client = {
  direct: sql,
  transaction: (work) => sql.begin(work),
  savepoint: (db, work) => db.savepoint(work),
  claim: async (db, key, params, lease = null) => (await db`SELECT verdict, fence, result, error, retry_after, holder
    FROM idem_claim('create_order', ${key}, ${params}, 'postgres.js', lease => ${lease})`)[0],
  complete: async (db, key, fence, result) =>
    (await db`SELECT idem_complete_key('create_order', ${key}, ${fence}, ${result}, 'postgres.js') AS result`)[0].result,
  fail: (db, key, fence, error) => db`SELECT idem_fail_key('create_order', ${key}, ${fence}, ${error}, principal => 'postgres.js')`,
  insert: async (db, order) => (await db`INSERT INTO orders ${db({ client: 'postgres.js', ...order })} RETURNING id`)[0].id,
  status: async (db, key) => (await db`SELECT state, result FROM idem_status('create_order', ${key}, 'postgres.js')`)[0],
  once: async (db, key) => (await db`SELECT idem_once('on_payment', ${key}, 'postgres.js') AS first`)[0].first,
  pid: async (db) => (await db`SELECT pg_backend_pid() AS pid`)[0].pid,
  handle: async (db, key) => (await db`SELECT c FROM idem_claim('create_order', ${key}, principal => 'postgres.js') c`)[0].c,
  finish: (db, handle, result) => db`SELECT idem_complete(${handle}, ${result})`,
  waits: (interval) => /^00:00:0[01]/.test(interval),
  code: (error) => error.code,
  forgotten: 'sql.begin() rejects, .code is ID003',
  nested: 'db.savepoint()',
};

await story(client);
const quoted = await client.claim(sql, 'k1', JSON.stringify(LAMP));
check('trap: JSON text is quoted once more, so that params are a string', quoted.verdict, 'mismatch');
const [cured] = await sql`SELECT verdict FROM idem_claim('create_order', 'k1', ${JSON.stringify(LAMP)}::text::jsonb, 'postgres.js')`;
check('types: JSON text is taken as it is with ::text::jsonb', cured.verdict, 'replay');
done();
await sql.end();
