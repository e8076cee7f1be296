// A file of JSON lines that is on disk before append() returns: what must still
// be known after the process is gone.

import { existsSync, fdatasyncSync, openSync, readFileSync, writeSync } from 'node:fs';

export const readJournal = (file) => (existsSync(file) ? readFileSync(file, 'utf8') : '')
  .split('\n').filter(Boolean).map((line) => JSON.parse(line));

export class Journal {
  constructor(file) {
    this.lines = readJournal(file);
    this.file = openSync(file, 'a');
  }

  append(line) {
    writeSync(this.file, JSON.stringify(line) + '\n');
    fdatasyncSync(this.file);
    this.lines.push(line);
    return line;
  }
}
