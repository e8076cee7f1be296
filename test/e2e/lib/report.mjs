// The report: a table whose every value is compared, while it is printed, with
// what it should be.  REPORT=story prints it for a person (make demo), otherwise
// it is the commentary of TAP.

const forPeople = process.env.REPORT === 'story';
let checked = 0;
let wrong = 0;

export function say(text = '') {
  const indent = forPeople ? '   ' : '# ';
  for (const line of text.split('\n')) console.log((indent + line).trimEnd());
}

export function check(what, got, expected) {
  checked++;
  const good = expected instanceof RegExp ? expected.test(got) : got === expected;
  const words = `${what} is ${expected}`;
  if (!good) wrong++;
  if (forPeople) {
    if (!good) console.log(`!! ${what}: it should be ${expected}, but is ${got}`);
  } else {
    console.log(`${good ? 'ok' : 'not ok'} ${checked} - ${words.replaceAll('#', '\\#')}`);
    if (!good) say(`it is ${got}`);
  }
}

// A number that is shown, and must lie between two bounds.
export function within(what, got, least, most = Infinity) {
  say(`${what.padEnd(64)} ${String(got).padStart(7)}`);
  check(`${what}, ${least} to ${most}: within bounds`, got >= least && got <= most, true);
}

const line = (caller, saw, tasks, executions) =>
  say(`${caller.padEnd(27)} ${saw.padEnd(41)} ${String(tasks).padStart(3)} ${String(executions).padStart(3)}`);

export function chapter(title, text) {
  say();
  say(title);
  say(text);
  say();
  line('who', 'what it saw', 't', 'e');
  line('-'.repeat(27), '-'.repeat(41), '---', '---');
}

// counts: {tasks, executions}, counted now.  expected: a pattern for what was
// seen, and the two numbers.
export function row(who, saw, counts, expected) {
  line(who, saw, counts.tasks, counts.executions);
  check(`what "${who}" saw`, saw, expected[0]);
  check(`tasks after "${who}"`, counts.tasks, expected[1]);
  check(`executions after "${who}"`, counts.executions, expected[2]);
}

// Ends the process: 0 if all was as it should be.
export function close() {
  say();
  if (forPeople) say(wrong === 0 ? `${checked} values were checked; all are as they should be.`
    : `${wrong} of ${checked} values are not as they should be.`);
  else console.log(`1..${checked}`);
  process.exit(wrong === 0 ? 0 : 1);
}
