// Events on their way from one database to another: tills sell and emit, relays
// take, deliver and acknowledge, billing books.  Relays and billing are killed
// at random, 2 % of all messages are lost, late or doubled, and once all of the
// server is killed.  No event may be lost, none may be booked twice, and events
// of one customer are booked in their order.
//
//   EVENTS (20000)   how many events there are
//   CHAOS_SEED       of the faults and the kills

import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import { Random } from '../fuzz/random.mjs';
import { start } from './lib/child.mjs';
import { freshDatabase } from './lib/database.mjs';
import { Link } from './lib/link.mjs';
import { check, close, say, within } from './lib/report.mjs';

const EVENTS = Number(process.env.EVENTS ?? 20_000);
const SEED = Number(process.env.CHAOS_SEED ?? Math.floor(Math.random() * 2 ** 31));
const TILLS = 2;
const LINES = 10;
const CARTS = Math.ceil(EVENTS / TILLS / LINES);
const LONGEST = 1500;
const PATIENCE = 500;

say(`seed ${SEED}, ${TILLS * CARTS * LINES} events, 2 % of all messages, delays up to ${LONGEST} ms`);
const random = new Random(SEED);
const script = (name) => readFileSync(new URL(name, import.meta.url), 'utf8');
const shop = await freshDatabase('shop_events', script('outbox.sql'));
const billing = await freshDatabase('billing_events', script('inbox.sql'));

// --- the parts ----------------------------------------------------------------

const startConsumer = () => start('consumer', { database: 'billing_events' });
const consumers = [await startConsumer(), await startConsumer()];
const link = await new Link({ target: () => random.of(consumers).port, random, faults: 20, longest: LONGEST }).open();
const startRelay = () => start('relay', {
  database: 'shop_events', consumer: link.url, lease: '2 s', patience: PATIENCE, batch: 20, parallel: 4 });
const relays = await Promise.all([startRelay(), startRelay(), startRelay()]);
const kills = { relay: 0, consumer: 0, server: 0 };

async function killOne(kind, list, startAnother) {
  const victim = random.of(list);
  await victim.kill();
  list[list.indexOf(victim)] = await startAnother();
  kills[kind]++;
}

// Every process of the server, as a crash would.
async function killServer() {
  const { IDEM_BIN, IDEM_DATA, IDEM_SERVER_LOG } = process.env;
  await promisify(execFile)(`${IDEM_BIN}/pg_ctl`, ['-D', IDEM_DATA, '-l', IDEM_SERVER_LOG, '-m', 'immediate', '-w', '-s', 'restart']);
  kills.server++;
}

let over = false;
async function killAtRandom() {
  while (!over) {
    await sleep(500 + random.below(1000));
    await killOne('relay', relays, startRelay);
    if (random.chance(20)) await killOne('consumer', consumers, startConsumer);
  }
}

// --- the play -----------------------------------------------------------------

// The server may be away: ask until it answers.
async function count(db, table) {
  for (;;) {
    try {
      return Number(await db.value(`SELECT count(*) FROM ${table}`));
    } catch (error) {
      if (error.code?.startsWith('42')) throw error;
      await sleep(200);
    }
  }
}

// Until there are that many bookings; but not for longer than two minutes
// without one, which is for a loaded machine.
async function untilBooked(wanted) {
  let booked = await count(billing, 'booking');
  for (let since = Date.now(); booked < wanted && Date.now() - since < 120_000;) {
    await sleep(200);
    const now = await count(billing, 'booking');
    if (now > booked) since = Date.now();
    booked = now;
  }
}

const tills = await Promise.all(Array.from({ length: TILLS }, (_, i) => start('till', {
  database: 'shop_events', name: `till-${i}`, carts: CARTS, lines: LINES, customers: 300, seed: SEED + i, parallel: 3 })));
const killing = killAtRandom();
await untilBooked(TILLS * CARTS * LINES / 3);
await killServer();
await Promise.all(tills.map((till) => till.hear()));
await untilBooked(TILLS * CARTS * LINES * 0.95);
over = true;
await killing;
link.faults = 0;
await untilBooked(TILLS * CARTS * LINES);
await sleep(LONGEST + PATIENCE);     // what is on its way yet, arrives

// --- the account --------------------------------------------------------------

const [sold] = await shop.rows('SELECT count(*)::int AS lines, count(DISTINCT (cart, line))::int AS kinds, sum(amount)::int AS amount FROM sale');
const [booked] = await billing.rows('SELECT count(*)::int AS lines, count(DISTINCT (cart, line))::int AS kinds, count(DISTINCT event_id)::int AS events, sum(amount)::int AS amount FROM booking');
const repeats = await count(billing, 'repeat');

within('messages', link.counts.messages, EVENTS / 20);
within('  lost', link.counts.lose, 1);
within('  delayed', link.counts.delay, 1);
within('  doubled', link.counts.double, 1);
within('relays killed', kills.relay, 1);
within('consumers killed', kills.consumer, 0);
within('times all of the server was killed', kills.server, 1, 1);
within('deliveries of what was booked already', repeats, 1);
say();
within('lines sold', sold.lines, TILLS * CARTS * LINES, TILLS * CARTS * LINES);
within('events', await count(shop, 'idem_outbox_event'), sold.lines, sold.lines);
within('bookings', booked.lines, sold.lines, sold.lines);
check('lines sold once', sold.kinds, sold.lines);
check('events that were booked', booked.events, sold.lines);
check('lines that were booked', booked.kinds, sold.lines);
check('the amount that was booked', booked.amount, sold.amount);
check('events left', await count(shop, "idem_take('billing', 100)"), 0);
check('dead letters', await count(shop, 'idem_dead_letter'), 0);
check('lines booked out of their customer\'s order', await count(billing, `(
  SELECT FROM (SELECT line, row_number() OVER (PARTITION BY cart ORDER BY place) AS turn FROM booking WHERE customer IS NOT NULL) b WHERE line <> turn) AS wrong`), 0);
close();
