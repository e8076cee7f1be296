// The settings defaults, fields, ignore and unordered once more, from the words
// of docs/fingerprint.md: on plain values, one pointer at a time, in no hurry.
import canonicalize from 'canonicalize';

const isObject = (value) =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

export const tokens = (pointer) =>
  pointer.split('/').slice(1).map((token) => token.replaceAll('~1', '/').replaceAll('~0', '~'));

const mapMembers = (object, change) =>
  Object.fromEntries(Object.entries(object).flatMap(([name, value]) => change(name, value)));

function fill(given, defaults) {
  const filled = mapMembers(given, (name, value) =>
    [[name, isObject(value) && Object.hasOwn(defaults, name) && isObject(defaults[name])
      ? fill(value, defaults[name]) : value]]);
  for (const [name, value] of Object.entries(defaults))
    if (!Object.hasOwn(given, name)) Object.defineProperty(filled, name, { value, enumerable: true });
  return filled;
}

const behind = (pointers, token) =>
  pointers.filter((pointer) => pointer[0] === token).map((pointer) => pointer.slice(1));

function keep(value, pointers) {
  if (pointers.some((pointer) => pointer.length === 0)) return value;
  const expectsArray = pointers.some((pointer) => pointer[0] === '*');
  const expectsObject = pointers.some((pointer) => pointer[0] !== '*');
  if (Array.isArray(value)) {
    if (pointers.length > 0 && !expectsArray) return value;
    const inside = behind(pointers, '*');
    return inside.length === 0 ? [] : value.map((element) => keep(element, inside));
  }
  if (!isObject(value) || (pointers.length > 0 && !expectsObject)) return value;
  return mapMembers(value, (name, member) => {
    const inside = behind(pointers, name);
    return inside.length === 0 ? [] : [[name, keep(member, inside)]];
  });
}

function drop(value, [token, ...rest]) {
  if (Array.isArray(value) && token === '*')
    return rest.length === 0 ? [] : value.map((element) => drop(element, rest));
  if (!isObject(value)) return value;
  return mapMembers(value, (name, member) =>
    name !== token ? [[name, member]] : rest.length === 0 ? [] : [[name, drop(member, rest)]]);
}

const byBytes = (a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b));

function order(value, pointer) {
  if (pointer.length === 0)
    return Array.isArray(value)
      ? value.map(canonicalize).sort(byBytes).map((text) => JSON.parse(text)) : value;
  const [token, ...rest] = pointer;
  if (Array.isArray(value))
    return token === '*' ? value.map((element) => order(element, rest)) : value;
  return isObject(value)
    ? mapMembers(value, (name, member) => [[name, name === token ? order(member, rest) : member]])
    : value;
}

export function normalise(params, settings) {
  let value = isObject(params) ? fill(params, settings.defaults ?? {}) : params;
  if (settings.fields) value = keep(value, settings.fields.map(tokens));
  for (const pointer of settings.ignore ?? []) value = drop(value, tokens(pointer));
  const inner = (settings.unordered ?? []).map(tokens).sort((a, b) => b.length - a.length);
  for (const pointer of inner) value = order(value, pointer);
  return value;
}
