// A client: a page in a browser, with a journal in which it keeps the key of
// each intent before it first sends it.  It submits, asks, and submits again
// with the same key until it knows; when its time is up it hands over to
// whoever looks into open intents, and writes that down.
//
// Opened again with the same journal it goes on with the same keys.

import { setTimeout as sleep } from 'node:timers/promises';
import { backoff } from './lib/backoff.mjs';
import { tell, told, word } from './lib/child.mjs';
import { exchangeJson, NoAnswer } from './lib/http.mjs';
import { Journal } from './lib/journal.mjs';
import { uuidv7 } from './lib/uuidv7.mjs';
import { judge } from './rule.mjs';

// intents: [{name, collection, text, budget, first}]; first: what to send first
// where the key is known already, "query" or (a second click) "submit".
// end: intents that have no key yet are not begun after it.
// stepped: one exchange at each word of the conductor, who is told what was seen.
const { service, account, intents, journal: file, patience, parallel = 1, stepped = false, end = Infinity } = await told();
const journal = new Journal(file);
const keys = new Map();
const outcomes = new Map();
for (const { name, key, outcome } of journal.lines) {
  if (key) keys.set(name, key);
  if (outcome) outcomes.set(name, outcome);
}

function keyOf(name) {
  if (!keys.has(name)) {
    keys.set(name, uuidv7());
    journal.append({ name, key: keys.get(name) });
  }
  return keys.get(name);
}

let requests = 0;

// One try; null if there is no answer.
async function send(what, intent, key) {
  const headers = { 'X-Account': account, 'X-Request-Id': `${process.pid}-${++requests}` };
  const url = `${service}/${intent.collection}`;
  try {
    return what === 'submit'
      ? await exchangeJson(url, { method: 'POST', headers: { ...headers, 'Idempotency-Key': key }, text: intent.text, patience })
      : await exchangeJson(`${url}/${key}`, { headers, patience });
  } catch (error) {
    if (error instanceof NoAnswer) return null;
    throw error;
  }
}

// Retry-After is the least to wait; the jitter comes on top of it.
function pause(answer, attempt) {
  const least = Number(answer?.headers['retry-after'] ?? 0) * 1000;
  return least + backoff(attempt, 50, 1000);
}

async function pursue(intent) {
  const giveUp = Date.now() + intent.budget;
  let what = keys.has(intent.name) ? intent.first ?? 'query' : 'submit';
  const key = keyOf(intent.name);
  for (let attempt = 0; ; attempt++) {
    if (stepped) await word();
    const answer = await send(what, intent, key);
    const { outcome, send: next } = judge(answer);
    const wait = pause(answer, attempt);
    const last = outcome !== 'open' ? outcome : Date.now() + wait > giveUp ? 'handed over' : null;
    // the journal first: the conductor reads it
    if (last) conclude(intent, last, answer);
    if (stepped) tell({ sent: what, outcome, status: answer?.status, headers: answer?.headers, body: answer?.body });
    if (last) return;
    if (!stepped) await sleep(wait);
    what = next;
  }
}

function conclude(intent, outcome, answer) {
  journal.append({ name: intent.name, outcome, file: answer?.body?.result?.file });
}

const left = intents.filter(({ name }) => !outcomes.has(name) || outcomes.get(name) === 'handed over');
async function pursueAll() {
  for (let intent = left.shift(); intent; intent = left.shift())
    if (keys.has(intent.name) || Date.now() < end) await pursue(intent);
}

tell({ ready: true });
await Promise.all(Array.from({ length: parallel }, pursueAll));
tell({ finished: true });
