// The same chain with 2 % of all messages lost, delayed or doubled, and workers
// and services killed at random.  At the end every open intent is reconciled,
// and each one is accounted for by name.
//
//   CHAOS_SECONDS (60)   how long clients go on beginning intents
//   CHAOS_SEED           of the faults and the kills

import { setTimeout as sleep } from 'node:timers/promises';
import { Random } from '../fuzz/random.mjs';
import { start } from './lib/child.mjs';
import { readJournal } from './lib/journal.mjs';
import { check, close, say, within } from './lib/report.mjs';
import { ACCOUNT, Stage, until } from './lib/stage.mjs';

const SECONDS = Number(process.env.CHAOS_SECONDS ?? 60);
const SEED = Number(process.env.CHAOS_SEED ?? Math.floor(Math.random() * 2 ** 31));
const FAULTS = 20;            // messages in 1000
const LONGEST = 2500;         // a delay, in milliseconds: more than anybody's patience
const PATIENCE = 1000;
const BUDGET = 12_000;
const CLIENTS = 3;
const PARALLEL = 40;          // intents that a client has in hand at once

say(`seed ${SEED}, ${SECONDS} s, ${FAULTS / 10} % of all messages, delays up to ${LONGEST} ms`);
const random = new Random(SEED);
const faulty = { random, faults: FAULTS, longest: LONGEST };
const stage = await Stage.open('chaos', {
  outside: faulty,
  // A call that is doubled behind the worker's back is done twice by a
  // generator that honours no keys, and nobody upstream can help it: on that
  // link doubling is left to the operation whose generator does.
  inside: { ...faulty, kinds: (path) => (path === '/letter' ? ['lose', 'delay'] : ['lose', 'delay', 'double']) },
  generator: { seed: SEED, busy: 20, takes: 20 },
});

// --- the parts ----------------------------------------------------------------

const startWorker = () => start('worker', {
  database: 'chaos', generator: stage.inside.url, lease: '2500 ms', patience: PATIENCE, parallel: 6 });
const startReconciler = () => start('reconciler', {
  database: 'chaos', generator: stage.inside.url, arrives: PATIENCE + LONGEST, patience: PATIENCE });
const startService = () => start('service', { database: 'chaos' });

const workers = await Promise.all([startWorker(), startWorker(), startWorker()]);
const reconcilers = await Promise.all([startReconciler(), startReconciler()]);
const kills = { worker: 0, reconciler: 0, service: 0 };
let over = false;

// Kills one of a list at random, and puts a new one into its place.
async function killOne(kind, list, startAnother) {
  const victim = random.of(list);
  await victim.kill();
  const another = await startAnother();
  list[list.indexOf(victim)] = another;      // lists of services turn meanwhile
  kills[kind]++;
}

async function killAtRandom() {
  while (!over) {
    await sleep(200 + random.below(800));
    await killOne('worker', workers, startWorker);
    if (random.chance(10)) await killOne('reconciler', reconcilers, startReconciler);
    if (random.chance(10)) await killOne('service', stage.services, startService);
  }
}

// --- the clients --------------------------------------------------------------

// Some ask for nothing, which is refused; some have little time.
function intent(name) {
  const rows = random.chance(3) ? 0 : 1 + random.below(100);
  return {
    name,
    collection: random.of(['exports', 'letters']),
    text: JSON.stringify({ name, rows }),
    budget: random.chance(5) ? 300 : BUDGET,
  };
}

const pages = Array.from({ length: CLIENTS }, (_, page) => ({
  journal: stage.file(`page-${page}`),
  intents: Array.from({ length: SECONDS * 200 }, (_, i) => intent(`${page}-${i}`)),
}));

// A page pursues its intents, beginning none that is new after `end`.
async function pursue({ journal, intents }, end, patience = PATIENCE) {
  const client = await start('client', { service: stage.outside.url, account: ACCOUNT, patience,
    parallel: PARALLEL, journal, intents, end });
  await client.hear();
  await client.kill();
}

// What is the last that the journals say of each intent that was begun.
function outcomes() {
  const known = new Map();
  for (const { name, outcome, file } of pages.flatMap(({ journal }) => readJournal(journal))) known.set(name, { outcome, file });
  return known;
}

// --- the play -----------------------------------------------------------------

const killing = killAtRandom();
const end = Date.now() + SECONDS * 1000;
await Promise.all(pages.map((page) => pursue(page, end)));
over = true;
await killing;
const handedOver = [...outcomes().values()].filter(({ outcome }) => outcome === 'handed over').length;

// The final reconciliation: the network is well again, and what was handed over
// is taken up with the keys in the journals, by somebody who has time.
stage.outside.faults = stage.inside.faults = 0;
await sleep(LONGEST);
await Promise.all(pages.map(({ journal, intents }) =>
  pursue({ journal, intents: intents.map((one) => ({ ...one, budget: 3_600_000 })) }, end, 30_000)));
await until('nothing is open', async () => (await stage.db.rows('SELECT FROM idem_list($1)', [ACCOUNT])).length === 0);

// --- the account --------------------------------------------------------------

const tasks = await stage.db.rows(`SELECT t.id, t.params ->> 'name' AS name, t.operation, t.file, s.state, s.result,
  idem_downstream_key(t.id, 'generate') AS outside_key, f.flagged, f.found, f.not_executed
  FROM task t, idem_status(t.operation, t.key, t.principal) s, LATERAL (SELECT count(*)::int AS flagged,
    count(*) FILTER (WHERE found = 'succeeded')::int AS found,
    count(*) FILTER (WHERE found = 'not_executed')::int AS not_executed FROM finding WHERE id = t.id) f`);
const ledger = await stage.ledger();
const files = new Map();
for (const line of ledger) files.set(line.key, [...files.get(line.key) ?? [], line.file]);
const known = outcomes();
const sum = (of) => tasks.reduce((all, task) => all + of(task), 0);
const executions = (task) => files.get(task.outside_key)?.length ?? 0;
const bad = (what, isBad) => {
  const some = tasks.filter(isBad);
  check(`tasks that ${what}`, some.length, 0);
  for (const task of some.slice(0, 5)) say(JSON.stringify({ ...task, executions: executions(task), told: known.get(task.name) }));
};

function tellWhatHappened() {
  const counts = (kind) => stage.outside.counts[kind] + stage.inside.counts[kind];
  within('messages', counts('messages'), 500);
  within('  lost', counts('lose'), 1);
  within('  delayed', counts('delay'), 1);
  within('  doubled', counts('double'), 1);
  within('workers killed', kills.worker, 1);
  within('reconcilers and services killed', kills.reconciler + kills.service, 0);
  within('tasks that were unknown for a while', sum((task) => Number(task.flagged > 0)), 1);
  within('  found to be executed', sum((task) => task.found), 0);
  within('  found not to be executed, and done after that', sum((task) => task.not_executed), 0);
  within('intents that clients had no more time for', handedOver, 1);
  say();
}

function account() {
  const intents = known.size;
  within('intents', intents, 50);
  within('tasks', tasks.length, intents, intents);
  within('executions', ledger.length, sum((task) => Number(task.state === 'succeeded')), intents + sum((task) => task.flagged));
  check('intents with a task of their own', new Set(tasks.map((task) => task.name)).size, intents);
  bad('are neither done nor refused', ({ state }) => state !== 'succeeded' && state !== 'failed');
  bad('are not what their client was told', ({ name, state, result }) =>
    (state === 'succeeded' ? `done ${result.file}` : 'refused undefined') !== `${known.get(name)?.outcome} ${known.get(name)?.file}`);
  bad('are done, but not with a file made for them', (task) =>
    task.state === 'succeeded' && !(task.file === task.result.file && files.get(task.outside_key)?.includes(task.file)));
  bad('are refused, but were executed', (task) => task.state === 'failed' && executions(task) > 0);
  bad('were executed twice though the generator honours keys', (task) => task.operation === 'export' && executions(task) > 1);
  bad('were executed more often than their outcome was unknown, and once', (task) => executions(task) > 1 + task.not_executed);
  check('executions for nobody', ledger.length - sum(executions), 0);
}

tellWhatHappened();
account();
close();
