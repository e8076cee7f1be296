// TAP for the clients in JavaScript: check(name, got, wanted), raised(promise), done().
import { isDeepStrictEqual } from 'node:util';

let count = 0;
let bad = 0;

export function check(name, got, wanted = true) {
  const good = isDeepStrictEqual(got, wanted);
  bad += good ? 0 : 1;
  console.log(`${good ? 'ok' : 'not ok'} ${++count} - ${name}`);
  if (!good) console.log('# got', got, 'wanted', wanted);
}

// The error that the promise ends with.
export async function raised(promise) {
  try {
    await promise;
  } catch (error) {
    return error;
  }
  return new Error('nothing was raised');
}

export function done() {
  console.log(`1..${count}`);
  process.exitCode = bad > 0 ? 1 : 0;
}
