// Five interruptions, played with real processes, real connections and kill -9:
// after each step the report shows what the caller saw, the tasks in the
// database, and the executions at the generator.

import { writeFileSync } from 'node:fs';
import { start } from './lib/child.mjs';
import { exchangeJson } from './lib/http.mjs';
import { readJournal } from './lib/journal.mjs';
import { chapter, check, close, row, say } from './lib/report.mjs';
import { ACCOUNT, Stage, until } from './lib/stage.mjs';
import { uuidv7 } from './lib/uuidv7.mjs';

const stage = await Stage.open('five');
// Nothing but what is played here may run out, however slow the machine is.
const PATIENCE = 60_000;
const worker = await newWorker();
const reconciler = await start('reconciler', {
  database: 'five', generator: `http://127.0.0.1:${stage.generator.port}`, arrives: 0, patience: PATIENCE, stepped: true });

function newWorker() {
  return start('worker', { database: 'five', generator: stage.inside.url, lease: '1 hour', patience: PATIENCE, stepped: true });
}

// --- callers ------------------------------------------------------------------

// A page, opened with the journal of that name.
// key: of somebody else, to begin with.  first: what it sends first, where it
// has a key already.
async function open(name, collection, text, { key, first } = {}) {
  const journal = stage.file(name);
  if (key) writeFileSync(journal, JSON.stringify({ name, key }) + '\n');
  const page = await start('client', {
    service: stage.outside.url, account: ACCOUNT, patience: PATIENCE, stepped: true,
    journal, intents: [{ name, collection, text, budget: 3_600_000, first }] });
  page.journal = journal;
  page.text = text;
  return page;
}

const journalOf = (page) => readJournal(page.journal);
const keyOf = (page) => journalOf(page)[0].key;

// What a person would say the page saw.
function inWords({ ended, sent, status, headers, body }) {
  if (ended) return `killed (${ended})`;
  const asked = sent === 'submit' ? 'POST' : 'GET';
  if (!status) return `${asked}: no answer`;
  const again = headers['retry-after'] ? `; again in ${headers['retry-after']} s` : '';
  const what = status >= 400 ? body.title : body.state;
  return `${asked}: ${status} ${what}${body.result ? `, ${body.result.file}` : ''}${status < 400 ? '' : again}`;
}

async function step(who, page, ...expected) {
  const seen = await page.ask('go');
  row(who, inWords(seen), await stage.counts(keyOf(page)), expected);
  return seen;
}

async function work(page, operation, ...expected) {
  const { worked } = await worker.ask({ operation });
  row('worker', worked ? 'worked on it' : 'nothing to do', await stage.counts(keyOf(page)), expected);
}

async function reconcile(page, ...expected) {
  await reconciler.ask('go');
  const { found } = await stage.db.row('SELECT found FROM finding ORDER BY fence DESC LIMIT 1');
  row('reconciler', found, await stage.counts(keyOf(page)), expected);
}

function concluded(page, outcome) {
  check('the outcome in its journal', journalOf(page).at(-1).outcome, outcome);
}

const WORKED = 'worked on it';

// --- the plays ----------------------------------------------------------------

async function lostAnswer() {
  chapter('(a) The task is created, the answer is lost',
    'The connection is cut when the service has committed.  The page cannot know,\n' +
    'and asks.  Then the request itself is lost: it sees the same, sends again.');
  const page = await open('a1', 'exports', '{"report": "sales", "rows": 12}');
  const held = stage.outside.holdAnswer();
  const lost = page.ask('go');
  (await held).drop();
  row('page', inWords(await lost), await stage.counts(keyOf(page)), ['POST: no answer', 1, 0]);
  await step('page, same key', page, 'GET: 202 accepted', 1, 0);
  await work(page, 'export', WORKED, 1, 1);
  await step('page, same key', page, /^GET: 200 succeeded, file-\d+$/, 1, 1);
  concluded(page, 'done');

  const other = await open('a2', 'exports', '{"report": "stock", "rows": 3}');
  stage.outside.loseRequest();
  await step('other page', other, 'POST: no answer', 0, 0);
  await step('other page, same key', other, /^GET: 404 Not on record; again in \d+ s$/, 0, 0);
  await step('other page, same key', other, 'POST: 202 accepted', 1, 0);
  await work(other, 'export', WORKED, 1, 1);
  await step('other page, same key', other, /^GET: 200 succeeded, file-\d+$/, 1, 1);
  concluded(other, 'done');
}

// A gate in the database: whoever wants to insert a task waits there while
// work() runs.
async function atTheGate(work) {
  await stage.db.rows(`CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN NEW; END'`);
  await stage.db.rows('CREATE TRIGGER gate BEFORE INSERT ON task FOR EACH ROW EXECUTE FUNCTION gate()');
  await stage.db.transaction(async (rows) => {
    await rows('SELECT pg_advisory_xact_lock(7)');
    await work();
  });
}

const waitsAtTheGate = () => stage.db.value(
  "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = 7 AND objsubid = 1 AND NOT granted)");

async function sameMoment() {
  chapter('(b) Two identical requests at the same moment',
    'The first is stopped between its claim and its commit.  The second does not\n' +
    'wait for it.  (Its members stand in another order: it is the same request.)');
  let first, second, answered;
  await atTheGate(async () => {
    first = await open('b1', 'exports', '{"report": "sales", "rows": 5}');
    answered = first.ask('go');
    await until('the first request waits at the gate', waitsAtTheGate);
    second = await open('b1', 'exports', '{"rows": 5.0, "report": "sales"}', { first: 'submit' });
    await step('second, first not done', second, /^POST: 409 In progress; again in \d+ s$/, 0, 0);
  });
  row('first click', inWords(await answered), await stage.counts(keyOf(first)), ['POST: 202 accepted', 1, 0]);
  await stage.db.rows('DROP TRIGGER gate ON task');
  await step('second click', second, 'GET: 202 accepted', 1, 0);
  await work(first, 'export', WORKED, 1, 1);
  const one = await step('first click', first, /^GET: 200 succeeded, file-\d+$/, 1, 1);
  const two = await step('second click', second, /^GET: 200 succeeded, file-\d+$/, 1, 1);
  check('the file that both were given', two.body.result.file, one.body.result.file);
  await twentyAtOnce();
}

async function twentyAtOnce() {
  const key = uuidv7();
  const answers = await Promise.all(Array.from({ length: 20 }, () => exchangeJson(`${stage.outside.url}/exports`, {
    method: 'POST', headers: { 'X-Account': ACCOUNT, 'Idempotency-Key': key }, text: '{"rows": 1}', patience: PATIENCE })));
  const accepted = answers.filter(({ status }) => status === 202).length;
  const busy = answers.filter(({ status }) => status === 409).length;
  row('twenty at once', `202 or 409: ${accepted + busy}`, await stage.counts(key), ['202 or 409: 20', 1, 0]);
  check('at least one of the twenty was accepted', accepted > 0, true);
  await worker.ask({ operation: 'export' });
}

async function otherParams() {
  chapter('(c) The same identity, other parameters',
    'Another request under a key that is taken is refused, before and after there\n' +
    'is a result, and is not told the result.');
  const page = await open('c1', 'exports', '{"report": "sales", "rows": 10}');
  await step('page', page, 'POST: 202 accepted', 1, 0);
  const wrong = { key: keyOf(page), first: 'submit' };
  const early = await open('c2', 'exports', '{"report": "sales", "rows": 99}', wrong);
  await step('99 rows instead of 10', early, 'POST: 422 Other parameters under this key', 1, 0);
  await work(page, 'export', WORKED, 1, 1);
  const late = await open('c3', 'exports', '{"report": "sales", "rows": 99}', wrong);
  const refused = await step('99 rows, later', late, 'POST: 422 Other parameters under this key', 1, 1);
  check('the advice', refused.body.advice, 'new_key');
  check('the content type', refused.headers['content-type'], 'application/problem+json');
  check('its members', Object.keys(refused.body).join(' '), 'type title status detail id state advice');
  await step('page', page, /^GET: 200 succeeded, file-\d+$/, 1, 1);
}

async function deadWorker() {
  chapter('(d) The generator is done, the worker is killed before it writes that down',
    'This generator does not honour keys: called twice, it would do it twice.  So\n' +
    'it is not called again; the reconciler asks its ledger.');
  const page = await open('d1', 'letters', '{"to": "customers", "rows": 40}');
  await step('page', page, 'POST: 202 accepted', 1, 0);
  await killedWhile(() => stage.inside.holdAnswer());
  await step('page, worker dead', page, 'GET: 202 processing', 1, 1);
  await endLease('letter', page);
  await step('page, lease over', page, /^GET: 409 The outcome is not known; again in \d+ s$/, 1, 1);
  await work(page, 'letter', 'nothing to do', 1, 1);
  await reconcile(page, 'succeeded', 1, 1);
  await step('page', page, /^GET: 200 succeeded, file-\d+$/, 1, 1);
  concluded(page, 'done');

  say();
  say('The same, but killed before its call has arrived.  Nothing tells which.');
  say();
  const other = await open('d2', 'letters', '{"to": "suppliers", "rows": 7}');
  await step('other page', other, 'POST: 202 accepted', 1, 0);
  await killedWhile(() => stage.inside.holdRequest());
  await endLease('letter', other);
  await step('other page, lease over', other, /^GET: 409 The outcome is not known; again in \d+ s$/, 1, 0);
  await reconcile(other, 'not_executed', 1, 0);
  await step('other page', other, 'GET: 202 accepted', 1, 0);
  await work(other, 'letter', WORKED, 1, 1);
  await step('other page', other, /^GET: 200 succeeded, file-\d+$/, 1, 1);
  concluded(other, 'done');
}

// A worker is killed while its call is held up on the way there, or back.
async function killedWhile(holdUp) {
  const victim = await newWorker();
  const held = holdUp();
  victim.say({ operation: 'letter' });
  const message = await held;
  await victim.kill();
  message.drop();
}

// As if so much time had passed that its lease is over.
async function endLease(operation, page) {
  await stage.age(operation, keyOf(page), '1 hour');
  check('its state', await stage.stateOf(operation, keyOf(page)), 'unknown');
}

async function closedPage() {
  chapter('(e) The page is closed and opened again, before and after what is remembered',
    'First results are kept for 30 days.  Then for 2 s, and for 2 s more the key\n' +
    'is refused; after that it is forgotten, but it carries its time, so it is\n' +
    'known to be late.');
  const page = await open('e1', 'exports', '{"report": "year", "rows": 365}');
  await step('page', page, 'POST: 202 accepted', 1, 0);
  await page.kill();
  await work(page, 'export', WORKED, 1, 1);
  const again = await open('e1', 'exports', page.text);
  await step('opened again', again, /^GET: 200 succeeded, file-\d+$/, 1, 1);
  concluded(again, 'done');

  await stage.db.rows(`SELECT idem_define('export', '{"retention": "2 s", "guard": "2 s"}')`);
  const forgetful = await open('e2', 'exports', '{"report": "decade", "rows": 3650}');
  await step('page closed for long', forgetful, 'POST: 202 accepted', 1, 0);
  await forgetful.kill();
  await work(forgetful, 'export', WORKED, 1, 1);
  await until('the result is too old', async () => ['expired', 'absent'].includes(await stage.stateOf('export', keyOf(forgetful))));
  const late = await open('e2', 'exports', forgetful.text, { first: 'submit' });
  await step('opened after 2 s', late, 'POST: 410 Too late to tell', 1, 1);
  concluded(late, 'late');
  await until('the key is forgotten', async () => Number(await stage.db.value('SELECT idem_purge()')) === 0 &&
    Number(await stage.db.value('SELECT count(*) FROM idem_record WHERE key = $1', [keyOf(forgetful)])) === 0);
  const tooLate = await open('e3', 'exports', forgetful.text, { key: keyOf(forgetful), first: 'submit' });
  await step('opened after 4 s', tooLate, 'POST: 410 Too late to tell', 1, 1);
}

await lostAnswer();
await sameMoment();
await otherParams();
await deadWorker();
await closedPage();
close();
