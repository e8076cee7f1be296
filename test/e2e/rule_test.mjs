// S04: the client's rule for every answer, also for those that cannot be read, and
// that docs/chain.md says the same.  Prints TAP.

import http from 'node:http';
import net from 'node:net';
import { readFileSync } from 'node:fs';
import { exchangeJson, NoAnswer, serve } from './lib/http.mjs';
import { judge } from './rule.mjs';

let number = 0;
let failed = 0;
function is(got, expected, what) {
  const good = JSON.stringify(got) === JSON.stringify(expected);
  if (!good) failed++;
  console.log(`${good ? 'ok' : 'not ok'} ${++number} - ${what}`);
  if (!good) console.log(`#   got ${JSON.stringify(got)}, expected ${JSON.stringify(expected)}`);
}

const query = { outcome: 'open', send: 'query' };
const submit = { outcome: 'open', send: 'submit' };
const rules = [
  [null, query],
  [{ status: 200, body: { state: 'succeeded', advice: 'use_result' } }, { outcome: 'done' }],
  [{ status: 200, body: {} }, query],
  [{ status: 200, body: null }, query],
  [{ status: 202, body: { state: 'accepted' } }, query],
  [{ status: 400, body: { title: 'Bad request' } }, { outcome: 'wrong' }],
  [{ status: 401, body: null }, query],
  [{ status: 403, body: null }, query],
  [{ status: 404, body: { state: 'absent', advice: 'retry_same_key' } }, submit],
  [{ status: 404, body: { title: 'Not found' } }, query],
  [{ status: 409, body: { state: 'unknown' } }, query],
  [{ status: 410, body: { state: 'expired' } }, { outcome: 'late' }],
  [{ status: 410, body: null }, query],
  [{ status: 413, body: null }, { outcome: 'wrong' }],
  [{ status: 422, body: { type: '/problems/failed', state: 'failed', advice: 'new_key' } }, { outcome: 'refused' }],
  [{ status: 422, body: { type: '/problems/mismatch', state: 'succeeded', advice: 'new_key' } }, { outcome: 'refused' }],
  [{ status: 422, body: { state: 'failed', advice: 'retry_same_key' } }, submit],
  [{ status: 429, body: null }, query],
  [{ status: 503, body: { state: 'failed', advice: 'retry_same_key' } }, submit],
  [{ status: 500, body: null }, query],
  [{ status: 418, body: null }, query],
];
for (const [answer, expected] of rules) is(judge(answer), expected, `S04: ${JSON.stringify(answer)}`);

// answers that a client cannot read
const raw = (text) => new Promise((resolve) => {
  const server = net.createServer((socket) => socket.once('data', () => socket.end(text)));
  server.listen(0, '127.0.0.1', () => resolve([`http://127.0.0.1:${server.address().port}/`, server]));
});
const answers = {
  'an HTML 502': 'HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/html\r\nContent-Length: 13\r\n\r\n<html></html>',
  'a 200 that is cut off': 'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"state": "succ',
  'half a body in chunks': 'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"sta\r\n',
  'no HTTP at all': 'hello\r\n\r\n',
};
for (const [what, text] of Object.entries(answers)) {
  const [url, server] = await raw(text);
  const seen = await exchangeJson(url, { patience: 2000 }).catch((error) => (error instanceof NoAnswer ? null : error));
  is(judge(seen), query, `S04: ${what} is no answer`);
  server.close();
}

// what the services say
const port = await serve(async () => ({ status: 200, body: {} }));
const answered = await exchangeJson(`http://127.0.0.1:${port}/x`);
is(answered.headers['cache-control'], 'no-store', 'S04: no cache may answer');
const large = await exchangeJson(`http://127.0.0.1:${port}/x`, { method: 'POST', text: 'x'.repeat((1 << 20) + 1) }).catch(() => ({ status: 413 }));
is(large.status, 413, 'S04: a body that is too large is 413');

// docs/chain.md has a row for each
const page = readFileSync(new URL('../../docs/chain.md', import.meta.url), 'utf8');
const table = page.slice(page.indexOf("## The client's rule"), page.indexOf('The pause before each try'));
const statuses = [...new Set(rules.map(([answer]) => answer?.status).filter((status) => status && status < 500 && status !== 418))];
is(statuses.filter((status) => !table.includes(String(status))), [], 'S04: docs/chain.md has a row for each status');

console.log(`1..${number}`);
http.globalAgent.destroy();
process.exit(failed ? 1 : 0);
