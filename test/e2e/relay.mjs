// A relay: takes events, delivers them over HTTP, a batch at a time, and
// acknowledges what has arrived.  It may die at any moment; what it had taken is
// taken again when its lease is over, so the far side hears some of it twice.

import { setTimeout as sleep } from 'node:timers/promises';
import { tell, told } from './lib/child.mjs';
import { Database } from './lib/database.mjs';
import { exchange, NoAnswer } from './lib/http.mjs';

const { database, consumer, lease, patience, batch, parallel } = await told();
const db = new Database('shop_relay', database, parallel);

const TAKE = "SELECT event_id AS id, payload, fence FROM idem_take('billing', $1, $2, '200 ms')";
const ACK = 'SELECT idem_ack_many($1, $2)';
const NACK = 'SELECT idem_nack($1, $2, $3)';

async function deliver(events) {
  const text = JSON.stringify(events.map(({ id, payload }) => ({ id, payload })));
  try {
    return (await exchange(consumer, { method: 'POST', text, patience })).status;
  } catch (error) {
    if (!(error instanceof NoAnswer)) throw error;
    return 'none';
  }
}

// Not arriving and arriving without an answer look the same from here: both are
// delivered again.
async function round() {
  const events = await db.rows(TAKE, [1 + Math.floor(Math.random() * batch), lease]);
  if (events.length === 0) return;
  const status = await deliver(events);
  if (status === 200) await db.rows(ACK, [events.map(({ id }) => id), events.map(({ fence }) => fence)]);
  else for (const event of events) await giveBack(event, status);
}

// ID002: it was too slow, and somebody else has taken the event.
async function giveBack({ id, fence }, status) {
  await db.rows(NACK, [id, fence, { http: status }]).catch((error) => {
    if (error.code !== 'ID002') throw error;
  });
}

// One that hangs holds up its batch only.  An error is the server being away:
// leases run out by themselves.
async function relayForEver() {
  for (;;) await round().catch(() => sleep(100));
}

tell({ ready: true });
for (let i = 0; i < parallel; i++) relayForEver();
