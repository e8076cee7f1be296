// The outside system: it makes files, and has a ledger of its own that no
// ROLLBACK reaches.
//
//   POST /export     makes a file, once for each Idempotency-Key
//   POST /letter     makes a file each time it is asked to
//   GET  /KEY        what it has made under that key
//   GET  /           all it has made
//
// What it refuses (422) or is too busy for (503) it has not done.

import { setTimeout as sleep } from 'node:timers/promises';
import { tell, told } from './lib/child.mjs';
import { serve } from './lib/http.mjs';
import { Journal } from './lib/journal.mjs';
import { Random } from '../fuzz/random.mjs';

const { ledger: file, seed, busy = 0, takes = 0 } = await told();
const random = new Random(seed);
const ledger = new Journal(file);
const made = new Map(ledger.lines.map((line) => [line.key, Promise.resolve(line)]));

async function make(kind, key, fence) {
  await sleep(random.below(takes + 1));
  return ledger.append({ file: `file-${ledger.lines.length + 1}`, kind, key, fence });
}

// A repeat that comes while the first is still at work gets the same file.
function makeOnce(kind, key, fence) {
  if (!made.has(key)) made.set(key, make(kind, key, fence));
  return made.get(key);
}

const ok = (body) => ({ status: 200, body });

tell({
  ready: true,
  port: await serve(async ({ method, path: [first], headers, text }) => {
    if (method === 'GET') return ok(ledger.lines.filter((line) => first === '' || line.key === first));
    if (random.below(1000) < busy) return { status: 503, body: { title: 'Too busy; nothing was done' } };
    if (!(JSON.parse(text).rows > 0)) return { status: 422, body: { title: 'There is nothing to write' } };
    const honours = first === 'export';
    return ok(await (honours ? makeOnce : make)(first, headers['idempotency-key'], headers.fence));
  }),
});
