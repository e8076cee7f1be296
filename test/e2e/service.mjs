// The export service: HTTP in front, the database behind, nothing in between.
// It keeps no state, so any number of instances may run and any may die.
//
//   POST   /exports         Idempotency-Key: KEY    accept the work
//   GET    /exports/KEY                             what is known of it
//   DELETE /exports/KEY                             it shall not be done any more
//
// and the same for /letters.  Whose key it is stands in X-Account, put there by
// whatever has authenticated the caller.

import { tell, told } from './lib/child.mjs';
import { Database } from './lib/database.mjs';
import { serve } from './lib/http.mjs';
import { httpAnswer, problem } from './problem.mjs';

const OPERATIONS = { exports: 'export', letters: 'letter' };
const { database } = await told();
const db = new Database('export_service', database, 8);

const asAnswer = (call) => `SELECT a.verdict, a.state, a.advice, a.id, a.result, a.error,
  extract(epoch FROM a.retry_after) AS retry_after, idem_http_status(a) AS http FROM ${call} a`;
const ACCEPT = asAnswer('idem_accept($1, $2, $3, $4)');
const STATUS = asAnswer('idem_status($1, $2, $3)');
const CANCEL = asAnswer('idem_cancel($1, $2, $3)');
const REQUEST_ID = "SELECT set_config('idempotency.request_id', $1, true)";
const ENQUEUE = 'INSERT INTO task (id, principal, operation, key, params) VALUES ($1, $2, $3, $4, $5)';

// Acceptance and the task's row are one transaction.  The params go to the
// database as the text that was received: what JavaScript makes of a number is
// not what the customer sent.
const accept = (call, params) => db.transaction(async (rows) => {
  await rows(REQUEST_ID, [call.requestId]);
  const [answer] = await rows(ACCEPT, [call.operation, call.key, params, call.principal]);
  if (answer.verdict === 'execute')
    await rows(ENQUEUE, [answer.id, call.principal, call.operation, call.key, params]);
  return answer;
});

const query = (call) => db.row(STATUS, [call.operation, call.key, call.principal]);
const cancel = (call) => db.row(CANCEL, [call.operation, call.key, call.principal]);

function answerTo(call, method, text) {
  if (method === 'POST') return accept(call, text);
  return method === 'DELETE' ? cancel(call) : query(call);
}

// By SQLSTATE: the caller's mistake, the caller's rights, or nobody's fault.  A
// request that failed on the way may have been committed: it is asked for again.
const BAD_REQUEST = new Set(['22023', '22032', '22P02', '22P05', '54001']);

function problemOf(error) {
  if (BAD_REQUEST.has(error.code)) return problem(400, 'bad-request', 'Bad request', error.message);
  if (error.code === '42501') return problem(403, 'forbidden', 'Not permitted', error.message);
  return problem(503, 'unavailable', 'No answer from the database', 'Ask again, with the same key.', {}, { 'Retry-After': 1 });
}

const port = await serve(async ({ method, path: [collection, inPath], headers, text }) => {
  const call = {
    operation: OPERATIONS[collection],
    key: method === 'POST' ? headers['idempotency-key'] : inPath,
    principal: headers['x-account'],
    requestId: headers['x-request-id'] ?? '',
  };
  if (!call.operation) return problem(404, 'no-such-place', 'Not found', 'There is nothing here.');
  if (!call.principal) return problem(401, 'unauthorized', 'Not authenticated', 'An account is needed.');
  if (!call.key) return problem(400, 'bad-request', 'Bad request', 'A key is needed.');
  try {
    return httpAnswer(await answerTo(call, method, text));
  } catch (error) {
    return problemOf(error);
  }
});
tell({ ready: true, port });
