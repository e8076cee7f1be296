// Processes: the parts of the chain are started by whoever conducts the play,
// told what to be, and killed with kill -9.

import { fork } from 'node:child_process';
import { fileURLToPath } from 'node:url';

// Messages in the order they came, for whoever asks for the next one.
class Mailbox {
  constructor(emitter) {
    this.arrived = [];
    this.waiting = [];
    emitter.on('message', (message) => this.put(message));
  }

  put(message) {
    if (this.waiting.length > 0) this.waiting.shift()(message);
    else this.arrived.push(message);
  }

  next() {
    return this.arrived.length > 0 ? Promise.resolve(this.arrived.shift())
      : new Promise((resolve) => { this.waiting.push(resolve); });
  }
}

class Child {
  constructor(part, config) {
    this.process = fork(fileURLToPath(new URL(`../${part}.mjs`, import.meta.url)));
    this.mailbox = new Mailbox(this.process);
    this.ended = new Promise((resolve) => {
      this.process.on('exit', (code, signal) => {
        if (signal !== 'SIGKILL') throw new Error(`${part} has ended by itself (${signal ?? code})`);
        this.mailbox.put({ ended: signal });
        resolve();
      });
    });
    this.process.send(config);
  }

  // The next message of the process; {ended} when it was killed.
  hear() { return this.mailbox.next(); }

  say(message) { this.process.send(message); }

  ask(message) {
    this.say(message);
    return this.hear();
  }

  // Nothing it does on the way out can help it.
  async kill() {
    this.process.kill('SIGKILL');
    await this.ended;
  }
}

// Starts a part and waits until it says that it is ready.
export async function start(part, config) {
  const child = new Child(part, config);
  child.port = (await child.hear()).port;
  return child;
}

// --- on the other side --------------------------------------------------------

const conductor = process.channel ? new Mailbox(process) : null;

// The next word of the conductor; the first is what this process is to be.
export const word = () => conductor.next();

// No process outlives who started it.
export const told = () => {
  process.on('disconnect', () => process.exit());
  return word();
};

export const tell = (message) => process.send(message);
