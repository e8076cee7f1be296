// The story that each client of Node.js tells in its own words. A client is
//
//   name, direct                    its principal; what calls outside a transaction go to
//   transaction(work), savepoint(db, work)
//   claim(db, key, params, lease) complete(db, key, fence, result) fail(db, key, fence, error)
//   insert(db, order) status(db, key) once(db, key) pid(db)
//   handle(db, key) finish(db, handle, result)      a claim and its completion by the answer
//   waits(retry_after)              whether that is a time, as this client reads it
//   code(error), forgotten          the SQLSTATE in an error; in words, what ID003 looks like
//   nested                          in words, what the savepoint is
import { randomUUID } from 'node:crypto';
import { check, raised } from './tap.mjs';

export const LAMP = { item: 'lamp', quantity: 2 };
const NONE = { item: 'lamp', quantity: 0 };

export async function story(client) {
  const { direct, claim } = client;

  const [first, order, pid, busy, result] = await client.transaction(async (db) => {
    const mine = await claim(db, 'k1', LAMP);
    const id = await client.insert(db, LAMP);
    return [mine, id, await client.pid(db), await claim(direct, 'k1', LAMP), await client.complete(db, 'k1', mine.fence, { order: id })];
  });
  check('execute: the first claim executes, and the result is handed back', [first.verdict, result], ['execute', { order }]);
  check('in progress: told at once, by whom and for how long', [busy.verdict, busy.holder, client.waits(busy.retry_after)], ['in_progress', pid, true]);
  const again = await claim(direct, 'k1', LAMP);
  check('replay: the recorded result, as an object', [again.verdict, again.result], ['replay', { order }]);
  check('mismatch: other params', (await claim(direct, 'k1', NONE)).verdict, 'mismatch');

  const forgotten = await raised(client.transaction((db) => claim(db, 'k2', LAMP)));
  check(`forgotten completion: ${client.forgotten}`, client.code(forgotten), 'ID003');
  check('forgotten completion: nothing is left', (await client.status(direct, 'k2')).state, 'absent');

  const third = await client.transaction(async (db) => {
    const mine = await claim(db, 'k3', NONE);
    const refused = await raised(client.savepoint(db, (work) => client.insert(work, NONE)));
    await client.fail(db, 'k3', mine.fence, { code: 'bad_quantity' });
    return [mine.verdict, client.code(refused)];
  });
  const failed = await claim(direct, 'k3', NONE);
  check(`savepoint: the claim outlives the work's ${client.nested}`, third, ['execute', '23514']);
  check('failure recorded: it is replayed', [failed.verdict, failed.error], ['replay', { code: 'bad_quantity' }]);

  const leased = await claim(direct, 'k4', LAMP, '30 s');
  check('leased call: others see it while no transaction is open', (await claim(direct, 'k4', LAMP)).verdict, 'in_progress');
  await client.complete(direct, 'k4', leased.fence, { charge: 'ch_1' });
  check('leased call: completed by a later transaction', (await claim(direct, 'k4', LAMP)).result, { charge: 'ch_1' });

  await client.transaction(async (db) => client.finish(db, await client.handle(db, 'k5'), [1, 2]));
  check('answer handed back: as text, cast to idem_answer', (await client.status(direct, 'k5')).result, [1, 2]);

  check('once: true, then false', [await client.once(direct, 'e1'), await client.once(direct, 'e1')], [true, false]);

  const native = await claim(direct, randomUUID(), LAMP, '5 s');
  check(`types: a UUID and a lease are strings; the fence is a ${typeof native.fence}`, native.verdict, 'execute');
}
