// PostGraphile: functions that claim inside are mutations, each a transaction of its own;
// pgSettings gives it the principal. Over HTTP, as it is used.
import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import { readFileSync } from 'node:fs';
import pg from 'pg';
import { postgraphile } from 'postgraphile';
import { check, done } from '../lib/tap.mjs';

const owner = new pg.Client({ user: 'postgres' });
await owner.connect();
await owner.query(readFileSync(new URL('api.sql', import.meta.url), 'utf8'));
const pool = new pg.Pool();
const server = createServer(postgraphile(pool, 'api', {
  disableQueryLog: true,
  dynamicJson: true,
  extendedErrors: ['errcode', 'hint'],
  pgSettings: async () => ({ 'idempotency.principal': 'postgraphile' }),
}));
await new Promise((ready) => { server.listen(0, '127.0.0.1', ready); });

async function ask(query, variables) {
  const answer = await fetch(`http://127.0.0.1:${server.address().port}/graphql`, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify({ query, variables }),
  });
  const { data, errors } = await answer.json();
  if (errors) return errors[0].extensions?.exception?.errcode ?? errors[0].errcode ?? errors[0].message;
  return data[Object.keys(data)[0]]?.result ?? data;
}
const place = (key, quantity = 2) =>
  ask(`mutation ($key: String!, $quantity: Int!) { place(input: {key: $key, item: "lamp", quantity: $quantity}) { result: json } }`, { key, quantity });
const mutate = (name, input, result) => ask(`mutation { ${name}(input: {${input}}) { result: ${result} } }`);

const other = new pg.Client();
await other.connect();
await other.query('BEGIN');
await other.query(`SELECT idem_claim('create_order', 'k1', '{"item": "lamp", "quantity": 2}', 'postgraphile')`);
check('in progress: errors[0], errcode ID010', await place('k1'), 'ID010');
await other.query('ROLLBACK');
const order = await place('k1');
check('execute: the first mutation executes', typeof order.order, 'number');
check('replay: the recorded result', await place('k1'), order);
check('mismatch: errors[0], errcode ID011', await place('k1', 3), 'ID011');
check('forgotten completion: errors[0], which has the message and no errcode', /^COMMIT refused/.test(await mutate('forget', 'key: "k2"', 'string')));
check('forgotten completion: nothing is left', (await other.query(`SELECT state FROM idem_status('create_order', 'k2', 'postgraphile')`)).rows[0].state, 'absent');
check('savepoint: a block with EXCEPTION inside the function', await place('k3', 0), { code: 'bad_quantity' });
check('failure recorded: its replay is errcode ID014', await place('k3', 0), 'ID014');
const key = randomUUID();
const fence = await mutate('charge', `key: "${key}", lease: {seconds: 30}`, 'bigInt');
check('types: a UUID, an Interval, and a BigInt, which is a string', typeof fence, 'string');
check('leased call: completed by a later mutation', await mutate('charged', `key: "${key}", fence: "${fence}", result: {charge: "ch_1"}`, 'json'), { charge: 'ch_1' });
const handle = await mutate('handle', 'key: "k5"', 'idemAnswer { verdict, state, advice, id, principal, operation, key, fence, attempt, claimedAt, leaseUntil }');
const finish = 'mutation ($claim: IdemAnswerInput!, $result: JSON!) { finish(input: {claim: $claim, result: $result}) { result: json } }';
check('answer handed back: as an object with the same members', await ask(finish, { claim: handle, result: [1, 2] }), [1, 2]);
check('once: true, then false', [await mutate('seen', 'key: "e1"', 'boolean'), await mutate('seen', 'key: "e1"', 'boolean')], [true, false]);
await ask('{ seenToo(key: "e2") }');
check('trap: declared STABLE it is a query, which may be cached or sent twice: keep such functions VOLATILE', await mutate('seen', 'key: "e2"', 'boolean'), false);
done();
await Promise.all([owner.end(), other.end(), pool.end()]);
server.close();
server.closeAllConnections();
