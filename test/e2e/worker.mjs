// A worker: starts accepted work under a lease, calls the generator in no
// transaction, and writes down what came of it, together with the task's row.
// It may die anywhere; then the lease runs out, and the reconciler finds out.

import { setTimeout as sleep } from 'node:timers/promises';
import { tell, told, word } from './lib/child.mjs';
import { Database } from './lib/database.mjs';
import { exchangeJson, NoAnswer } from './lib/http.mjs';

const { database, generator, lease, patience, parallel = 1, stepped = false } = await told();
const db = new Database('export_worker', database, parallel * 2);

// The lease leaves room for the call: a call begun after its end could arrive
// when the reconciler has found that there was none.
const START = `SELECT id, principal, operation, key, fence, idem_downstream_key(id, 'generate') AS outside_key,
  extract(epoch FROM lease_until) * 1000 AS lease_until FROM idem_start_next($1, 1, $2, $3)`;
const COMPLETE = 'SELECT idem_complete_key($1, $2, $3, $4, $5)';
const FAIL = 'SELECT idem_fail_key($1, $2, $3, $4, $5, $6)';
const UNSURE = 'SELECT idem_unsure_key($1, $2, $3, $4, $5)';
const RELEASE = 'SELECT idem_release_key($1, $2, $3, $4)';

const succeeded = (task, file) => db.transaction(async (rows) => {
  await rows('UPDATE task SET file = $2 WHERE id = $1', [task.id, file]);
  await rows(COMPLETE, [task.operation, task.key, task.fence, { file }, task.principal]);
});

const failed = (task, error) => db.rows(FAIL, [task.operation, task.key, task.fence, error, false, task.principal]);

const unsure = (task, detail) => db.rows(UNSURE, [task.operation, task.key, task.fence, detail, task.principal]);

// Nothing was done.  The customer has been promised that it will be: the task is
// accepted still, and is handed out again when the policy's retry_after is over.
const putBack = (task) => db.rows(RELEASE, [task.operation, task.key, task.fence, task.principal]);

// What an answer of the generator means: docs/uncertain.md, "When to say so
// yourself".
function writeDown(task, answer) {
  switch (answer.status) {
    case 200: return succeeded(task, answer.body.file);
    case 422: return failed(task, { generator: answer.body.title });
    case 503: return putBack(task);
    default: return unsure(task, { http: answer.status });
  }
}

async function call(task) {
  const headers = { 'Idempotency-Key': task.outside_key, Fence: task.fence };
  try {
    return await exchangeJson(`${generator}/${task.operation}`, { method: 'POST', headers, text: task.params, patience });
  } catch (error) {
    if (!(error instanceof NoAnswer)) throw error;
    return error.sent ? { status: 'none' } : { status: 503 };
  }
}

// Works on the longest accepted task of an operation; false if there is none.
async function workOnNext(operation) {
  const task = await db.row(START, [operation, lease, `worker ${process.pid}`]);
  if (!task) return false;
  const tasks = await db.rows('SELECT params::text FROM task WHERE id = $1', [task.id]);
  task.params = tasks[0].params;
  const late = Number(task.lease_until) - Date.now() < patience;
  await writeDown(task, late ? { status: 503 } : await call(task));
  return true;
}

// An error here is the database's.  ID002 says that the reconciler was faster;
// anything else leaves the task to its lease.  Both are somebody else's now.
async function round(operation) {
  try {
    return await workOnNext(operation);
  } catch (error) {
    if (error.code !== 'ID002') console.error(`worker ${process.pid}: ${error.message}`);
    return false;
  }
}

async function workForEver(operation) {
  for (;;)
    if (!await round(operation)) await sleep(20 + Math.random() * 60);
}

async function workWhenTold() {
  for (;;) tell({ worked: await round((await word()).operation) });
}

tell({ ready: true });
if (stepped) await workWhenTold();
else for (const operation of ['export', 'letter']) for (let i = 0; i < parallel; i++) workForEver(operation);
