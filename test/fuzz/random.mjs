// Random numbers that can be had again, and random JSON.

// splitmix32: what it gives depends on the seed only.
export class Random {
  constructor(seed) { this.state = seed >>> 0; }
  bits() {
    this.state = (this.state + 0x9e3779b9) >>> 0;
    let z = this.state;
    z = Math.imul(z ^ (z >>> 16), 0x21f0aaad);
    z = Math.imul(z ^ (z >>> 15), 0x735a2d97);
    return (z ^ (z >>> 15)) >>> 0;
  }
  below(n) { return this.bits() % n; }
  chance(percent) { return this.below(100) < percent; }
  of(list) { return list[this.below(list.length)]; }
  shuffled(list) {
    const copy = [...list];
    for (let i = copy.length - 1; i > 0; i--) {
      const j = this.below(i + 1);
      [copy[i], copy[j]] = [copy[j], copy[i]];
    }
    return copy;
  }
}

// A number is kept as its text, so that it has as many digits as it likes.
export class Num {
  constructor(text) { this.text = text; }
}

const CHARACTERS = [
  ...'abcdefghijklmnopqrstuvwxyzABCZ0123456789 _-./*~:,{}[]', '"', '\\', '\b', '\t', '\n', '\f', '\r',
  '\u0001', '\u001f', '\u007f', '\u0080', 'é', 'ß', 'Ω', '\u07ff', '\u0800', '\u2028', '€',
  '語', '\ud7ff', '\ue000', '\ufb33', '\ufeff', '\uffff', '\u{10000}', '😀', '\u{10ffff}', 'e\u0301',
];
const NAMES = ['a', 'b', 'c', 'd', '*', 'x/y', '~', 'aa', 'ab', 'items'];

export function randomString(random) {
  if (random.chance(70)) return random.of(NAMES);
  let text = '';
  for (let length = random.below(random.chance(90) ? 12 : 80); length > 0; length--)
    text += random.chance(60) ? CHARACTERS[random.below(26)] : random.of(CHARACTERS);
  return text;
}

function randomDouble(random) {
  const view = new DataView(new ArrayBuffer(8));
  view.setUint32(0, random.bits());
  view.setUint32(4, random.bits());
  const value = view.getFloat64(0);
  return Number.isFinite(value) ? value : 0;
}

const digits = (random, count) => {
  let text = '';
  for (; count > 0; count--) text += random.below(10);
  return text;
};

export function randomNumber(random, exact) {
  const sign = random.chance(20) ? '-' : '';
  switch (random.below(8)) {
    case 0: return new Num(String(randomDouble(random)));
    case 1: return new Num(sign + random.of(['0', '1', '10', '1e21', '1e-7', '0.000001', '9007199254740992',
      '9007199254740993', '1e23', '5e-324', '1.7976931348623157e308', '123456789012345680000']));
    case 2: return new Num(sign + (1 + random.below(9)) + digits(random, random.below(exact ? 40 : 22)));
    case 3: return new Num(`${sign}${random.below(1000)}.${digits(random, 1 + random.below(exact ? 40 : 18))}`);
    case 4: return exact ? new Num(`${sign}${1 + random.below(9)}e${random.below(30000) - 15000}`)
      : new Num(`${sign}${1 + random.below(9)}e${random.below(600) - 300}`);
    default: return new Num(sign + String(random.below(20000)));
  }
}

export function randomValue(random, depth, exact) {
  const kind = random.below(depth > 0 ? 10 : 5);
  if (kind === 0) return random.of([null, true, false]);
  if (kind < 3) return randomNumber(random, exact);
  if (kind < 5) return randomString(random);
  const size = random.below(random.chance(95) ? 5 : 40);
  if (kind < 7) return Array.from({ length: size }, () => randomValue(random, depth - 1, exact));
  const members = new Map();
  for (let i = 0; i < size; i++) members.set(randomString(random), randomValue(random, depth - 1, exact));
  return members;
}

// The same number in another spelling.
export function respell(random, text) {
  const [, sign, whole, fraction = '', exponent = '0'] = /^(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?$/.exec(text);
  let all = whole + fraction + '0'.repeat(random.below(4));
  let power = Number(exponent) - fraction.length - (all.length - whole.length - fraction.length);
  if (random.chance(40)) return text;
  const lead = all.length - all.replace(/^0+(?=.)/, '').length;
  all = all.slice(lead);
  const behind = random.below(all.length);
  power += behind;
  const head = all.slice(0, all.length - behind);
  const tail = behind > 0 ? '.' + all.slice(all.length - behind) : random.chance(30) ? '.0' : '';
  if (power === 0 && random.chance(80)) return sign + head + tail;
  const e = power < 0 ? '-' : random.of(['', '+']);
  return sign + head + tail + random.of('eE') + e + '0'.repeat(random.below(3)) + Math.abs(power);
}

const SHORT = { '"': '\\"', '\\': '\\\\', '/': '\\/', '\b': '\\b', '\t': '\\t', '\n': '\\n', '\f': '\\f', '\r': '\\r' };

function spellUnit(random, unit) {
  const hex = unit.charCodeAt(0).toString(16).padStart(4, '0');
  return '\\u' + (random.chance(50) ? hex : hex.toUpperCase());
}

function spellString(random, text) {
  let spelled = '"';
  for (const character of text) {
    const must = character < ' ' || character === '"' || character === '\\';
    if (SHORT[character] && random.chance(must ? 60 : 20)) spelled += SHORT[character];
    else if (must || random.chance(10)) for (const unit of character.split('')) spelled += spellUnit(random, unit);
    else spelled += character;
  }
  return spelled + '"';
}

const space = (random) => random.chance(85) ? '' : random.of([' ', '\n', '\t', '\r', '  \n']);

// The text of a value: members in any order, numbers and strings in any spelling.
export function spell(random, value) {
  const list = (open, parts, close) => open + space(random) + parts.join(',' + space(random)) + space(random) + close;
  if (value instanceof Num) return respell(random, value.text);
  if (typeof value === 'string') return spellString(random, value);
  if (Array.isArray(value)) return list('[', value.map((element) => spell(random, element)), ']');
  if (value instanceof Map)
    return list('{', random.shuffled([...value]).map(([name, member]) =>
      spellString(random, name) + space(random) + ':' + space(random) + spell(random, member)), '}');
  return String(value);
}
