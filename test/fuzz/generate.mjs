// Documents for compare.sql, one a line in the form of COPY:
//
//   node generate.mjs SEED COUNT            all
//   node generate.mjs SEED COUNT NUMBER     only that one
//   node generate.mjs SEED operations       the operations they are hashed under
//
//   number  operation  text  other  expected  as_jsonb
//
// expected is the fingerprint of text in hex, "refuse", or, if there is another
// text, whether the two are the "same" or "different".  as_jsonb: jsonb takes
// the text and loses nothing.
import { createHash } from 'node:crypto';
import canonicalize from 'canonicalize';
import { Num, Random, randomNumber, randomString, randomValue, spell } from './random.mjs';
import { normalise } from './normalise.mjs';

const OPERATIONS = 40;
const hash = (text) => createHash('sha256').update(text).digest('hex');

// --- settings ---------------------------------------------------------------

function plain(value) {
  if (value instanceof Num) return Number(value.text);
  if (Array.isArray(value)) return value.map(plain);
  if (value instanceof Map) return Object.fromEntries([...value].map(([name, member]) => [name, plain(member)]));
  return value;
}

const POINTER_TOKENS = ['a', 'b', 'c', '*', '*', 'x~1y', '~0', 'aa', 'items'];

function pointers(random, most) {
  return Array.from({ length: random.below(most + 1) }, () =>
    Array.from({ length: 1 + random.below(3) }, () => '/' + random.of(POINTER_TOKENS)).join(''));
}

function settingsOf(seed, number) {
  const random = new Random(seed * 31 + number);
  const defaults = new Map();
  for (let i = random.below(4); i > 0; i--)
    defaults.set(random.of(['a', 'b', 'items', 'zz']), randomValue(random, 3, false));
  return {
    numbers: 'double',
    defaults: plain(defaults),
    fields: random.chance(50) ? null : pointers(random, 4),
    ignore: pointers(random, 3),
    unordered: random.chance(30) ? ['', ...pointers(random, 5)] : pointers(random, 5),
  };
}

// --- what JSON.parse takes and we refuse --------------------------------------

// Is a name given twice?  The text is valid.
function hasTwins(text) {
  const open = [];
  for (const [token] of text.matchAll(/"(?:[^"\\]|\\.)*"\s*:?|[{}]/gs)) {
    if (token === '{') open.push(new Set());
    else if (token === '}') open.pop();
    else if (token.endsWith(':')) {
      const name = JSON.parse(token.slice(0, -1));
      if (open.at(-1).has(name)) return true;
      open.at(-1).add(name);
    }
  }
  return false;
}

// The fingerprint under strict JCS, or "refuse"; null if it is not for us to say:
// doubles forgive exponents that no numeric can hold.
function expectedOf(text) {
  let canonical;
  try {
    const value = JSON.parse(text);
    if (/[eE][+-]?\d{5}/.test(text)) return null;
    canonical = canonicalize(value);
    if (hasTwins(text)) return 'refuse';
  } catch {
    return 'refuse';
  }
  return /(?<!\\)(?:\\\\)*\\u(0000|d[89a-f])/.test(canonical) ? 'refuse' : hash(canonical);
}

const mutate = (random, text) => {
  const at = random.below(text.length + 1);
  const piece = random.of(['"', '\\', ',', ':', '{', '}', '[', ']', '0', '-', '.', 'e', '\\u', '\\u0000', '\\ud800', '\\udc00',
    '"a":1,', ',"a":1', 'null', '\ufeff', '\u00a0', '\t', '\v', '\u0001', ' ', '/', '1e400', '1E5', '']);
  return Array.from(text.slice(0, at)).join('') + piece + text.slice(at + random.below(3));
};

// --- kinds of documents ---------------------------------------------------------

function strict(random) {
  const text = spell(random, randomValue(random, 4, false));
  return ['fuzz_double', text, null, expectedOf(text)];
}

function mutated(random) {
  let text = spell(random, randomValue(random, 3, false));
  for (let i = random.below(3); i >= 0; i--) text = mutate(random, text);
  if (/\p{Surrogate}/u.test(text) || text.includes('\u0000')) return strict(random);
  const expected = expectedOf(text);
  return expected === null ? strict(random) : ['fuzz_double', text, null, expected];
}

function normalised(random, seed) {
  const number = random.below(OPERATIONS);
  const members = new Map([['a', 3], ['b', 2], ['items', 4]].map(([name, depth]) => [name, randomValue(random, depth, false)]));
  const text = spell(random, random.chance(70) ? members : randomValue(random, 4, false));
  return [`fuzz_${number}`, text, null, hash(canonicalize(normalise(JSON.parse(text), settingsOf(seed, number))))];
}

function same(random) {
  const value = randomValue(random, 4, true);
  return [null, spell(random, value), spell(random, value), 'same'];
}

function otherNumber(random, text) {
  const at = text.search(/[0-9]/) + random.below(text.match(/\d+/)[0].length);
  const digit = (Number(text[at]) + 1 + random.below(8)) % 10;
  const changed = text.slice(0, at) + digit + text.slice(at + 1);
  return new Num(/^-?0\d/.test(changed) ? text.replace(/^-?\d/, '7$&'.slice(0, 1)) + '1' : changed);
}

// The value with one leaf changed: the leaf is chosen going down.
function changed(random, value) {
  if (value instanceof Num)
    return /^-?0/.test(value.text) ? new Num('4711') : otherNumber(random, value.text);
  if (typeof value === 'string') return random.chance(50) ? value + 'x' : value + '\u0001';
  if (Array.isArray(value)) {
    if (value.length === 0) return new Map();
    const at = random.below(value.length);
    return value.map((element, i) => i === at ? changed(random, element) : element);
  }
  if (value instanceof Map) {
    if (value.size === 0) return [];
    const name = random.of([...value.keys()]);
    return new Map([...value].map(([key, member]) => [key, key === name ? changed(random, member) : member]));
  }
  return value === null ? false : null;
}

function different(random) {
  const value = randomValue(random, 4, true);
  return [null, spell(random, value), spell(random, changed(random, value)), 'different'];
}

const KINDS = [strict, strict, strict, strict, strict, strict, mutated, mutated, normalised, normalised, normalised,
  same, same, different];

// --- output -----------------------------------------------------------------------

const ESCAPES = { '\\': '\\\\', '\t': '\\t', '\n': '\\n', '\r': '\\r', '\b': '\\b', '\f': '\\f', '\v': '\\v' };
const field = (text) => text === null ? '\\N' : text.replace(/[\\\t\n\r\b\f\v]/g, (byte) => ESCAPES[byte]);

function line(seed, number) {
  const random = new Random(Math.imul(seed, 0x01000193) + number);
  const [operation, text, other, expected] = KINDS[number % KINDS.length](random, seed);
  const asJsonb = expected !== 'refuse';
  return [number, operation, text, other, expected, asJsonb].map((value) => value === null ? '\\N' : field(String(value))).join('\t');
}

const [seed, count, only] = process.argv.slice(2);
if (count === 'operations') {
  const define = (name, settings) => console.log("SELECT idem_define('%s', '%s');", name, JSON.stringify(settings).replaceAll("'", "''"));
  define('fuzz_double', { numbers: 'double' });
  for (let number = 0; number < OPERATIONS; number++) define(`fuzz_${number}`, settingsOf(Number(seed), number));
} else if (only !== undefined)
  console.log(line(Number(seed), Number(only)));
else {
  let lines = [];
  for (let number = 0; number < Number(count); number++) {
    lines.push(line(Number(seed), number));
    if (lines.length === 1000 || number === Number(count) - 1) {
      process.stdout.write(lines.join('\n') + '\n');
      lines = [];
    }
  }
}
