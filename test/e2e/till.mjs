// A till of the shop: sells carts, each in one transaction.  Where the server
// goes away without an answer it sells the same cart again, with the same key.
// Now and then it does so for no reason, as an anxious cashier would.

import { setTimeout as sleep } from 'node:timers/promises';
import { Random } from '../fuzz/random.mjs';
import { backoff } from './lib/backoff.mjs';
import { tell, told } from './lib/child.mjs';
import { Database } from './lib/database.mjs';

const { database, name, carts, lines, customers, seed, parallel } = await told();
const random = new Random(seed);
const db = new Database('shop_till', database, parallel);

async function sell(cart) {
  const amounts = Array.from({ length: lines }, () => 1 + random.below(100));
  // every third one is nobody's in particular: its events need no order
  const customer = random.chance(33) ? null : `customer-${random.below(customers)}`;
  for (let attempt = 0, wanted = random.chance(5) ? 2 : 1; wanted > 0; attempt++) {
    try {
      await db.rows('SELECT sell($1, $2, $3)', [cart, amounts, customer]);
      wanted--;
    } catch {
      await sleep(backoff(attempt, 50, 500));
    }
  }
}

let next = 0;
async function sellAll() {
  while (next < carts) await sell(`${name}-${next++}`);
}

tell({ ready: true });
await Promise.all(Array.from({ length: parallel }, sellAll));
tell({ finished: true });
