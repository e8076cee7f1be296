// Prisma over its driver adapter: $queryRaw in an interactive $transaction. It has no
// savepoint of its own, reads no interval and no void, and casts what it sends.
import { PrismaPg } from '@prisma/adapter-pg';
import pg from 'pg';
import { LAMP, story } from '../lib/story.mjs';
import { check, done, raised } from '../lib/tap.mjs';
import { PrismaClient } from './prisma-client/index.js';

const pool = new pg.Pool();
const prisma = new PrismaClient({ adapter: new PrismaPg(pool) });
const json = JSON.stringify;

async function savepoint(db, work) {
  await db.$executeRaw`SAVEPOINT work`;
  return work(db).catch(async (error) => {
    await db.$executeRaw`ROLLBACK TO SAVEPOINT work`;
    throw error;
  });
}

const client = {
  direct: prisma,
  transaction: (work) => prisma.$transaction(work),
  savepoint,
  claim: async (db, key, params, lease = null) => (await db.$queryRaw`
    SELECT verdict, fence, result, error, extract(epoch FROM retry_after)::float8 AS retry_after, holder
    FROM idem_claim('create_order', ${key}, ${json(params)}::jsonb, 'prisma', lease => ${lease}::interval)`)[0],
  complete: async (db, key, fence, result) =>
    (await db.$queryRaw`SELECT idem_complete_key('create_order', ${key}, ${fence}, ${json(result)}::jsonb, 'prisma') AS result`)[0].result,
  fail: (db, key, fence, error) => db.$executeRaw`SELECT idem_fail_key('create_order', ${key}, ${fence}, ${json(error)}::jsonb, principal => 'prisma')`,
  insert: async (db, order) => (await db.orders.create({ data: { client: 'prisma', ...order } })).id,
  status: async (db, key) => (await db.$queryRaw`SELECT state, result FROM idem_status('create_order', ${key}, 'prisma')`)[0],
  once: async (db, key) => (await db.$queryRaw`SELECT idem_once('on_payment', ${key}, 'prisma') AS first`)[0].first,
  pid: async (db) => (await db.$queryRaw`SELECT pg_backend_pid() AS pid`)[0].pid,
  handle: async (db, key) => (await db.$queryRaw`SELECT c::text FROM idem_claim('create_order', ${key}, principal => 'prisma') c`)[0].c,
  finish: (db, handle, result) => db.$queryRaw`SELECT idem_complete(${handle}::idem_answer, ${json(result)}::jsonb)`,
  waits: (seconds) => seconds > 0,
  code: (error) => error.cause?.originalCode ?? error.meta?.code,
  forgotten: '$transaction() rejects, .cause.originalCode is ID003',
  nested: 'SAVEPOINT',
};

await story(client);
check('trap: after ID003 at COMMIT the connection never goes back to the pool', pool.totalCount - pool.idleCount, 1);
const asked = await raised(prisma.$transaction(async (db) => {
  await client.claim(db, 'k6', LAMP);
  await db.$executeRaw`SET CONSTRAINTS ALL IMMEDIATE`;
}));
check('trap: SET CONSTRAINTS ALL IMMEDIATE before the end raises it where Prisma rolls back',
  [asked.meta.driverAdapterError.cause.originalCode, pool.totalCount - pool.idleCount], ['ID003', 1]);
const all = await raised(prisma.$queryRaw`SELECT * FROM idem_claim('create_order', 'k7', NULL, 'prisma', lease => '5 s'::interval)`);
check("trap: SELECT * meets an interval: name the columns, cast this one", /column of type 'interval'/.test(all.message));
const { fence } = await client.claim(prisma, 'k8', LAMP, '5 s');
const nothing = await raised(prisma.$queryRaw`SELECT idem_release_key('create_order', 'k8', ${fence}, 'prisma')`);
check('trap: $queryRaw meets a void: use $executeRaw', /column of type 'void'/.test(nothing.message));
done();
process.exit();
