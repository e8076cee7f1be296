// The network between two processes: an HTTP proxy that loses, delays and
// doubles messages.  Sender and receiver are ordinary programs and know nothing
// of it.
//
// A message is a request or an answer.  A lost one takes the connection with it
// at once, or leaves the sender waiting until its own patience ends.  A delayed
// one is delivered even if its sender has given up meanwhile: that late first
// try is what makes "not found" differ from "never".  A doubled request arrives
// twice, as a proxy that retries makes it.

import { setTimeout as sleep } from 'node:timers/promises';
import { body, exchange, listen, NoAnswer } from './http.mjs';

const SILENCE = 5000;           // of a lost message: more than a sender's patience
const LONGEST = 60_000;         // that the far side takes, and that a script waits

export class Link {
  // target: () => port.  faults: messages in 1000 that meet one.  kinds: which
  // faults there are on a path.  longest: of a delay, in milliseconds.
  constructor({ target, random = null, faults = 0, kinds = () => ['lose', 'delay', 'double'], longest = 0 }) {
    Object.assign(this, { target, random, faults, kinds, longest });
    this.counts = { messages: 0, lose: 0, delay: 0, double: 0 };
    this.scripts = [];
  }

  async open() {
    this.port = await listen((request, response) => this.carry(request, response));
    return this;
  }

  get url() { return `http://127.0.0.1:${this.port}`; }

  // The next request is lost.
  loseRequest() { this.scripts.push({ request: () => 'lose' }); }

  // The next request, or the answer to it, is held.  Resolves when it has come
  // this far (an answer: when the far side has done its work) to what can drop()
  // or deliver() it.  A request whose sender gives up earlier is not the next one.
  holdRequest() { return this.hold('request'); }
  holdAnswer() { return this.hold('answer'); }

  hold(message) {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`no ${message} came to be held`)), LONGEST);
      this.scripts.push({ [message]: () => new Promise((decide) => {
        clearTimeout(timer);
        resolve({ drop: () => decide('lose'), deliver: () => decide('pass') });
      }) });
    });
  }

  async carry(request, response) {
    const { method, headers, url } = request;
    const text = await body(request).catch(() => null);
    if (text === null) return;
    const script = this.scripts.shift();
    const fate = await script?.request?.() ?? this.fate(this.kinds(url));
    if (fate === 'lose') return this.lose(response);
    const send = () => exchange(`http://127.0.0.1:${this.target()}${url}`, { method, headers, text, patience: LONGEST });
    if (fate === 'delay') await this.delay();
    if (fate === 'double') this.delay().then(send).catch(() => {});
    try {
      await this.answer(response, await send(), script);
    } catch (error) {
      if (!(error instanceof NoAnswer)) throw error;
      response.destroy();
    }
  }

  async answer(response, answer, script) {
    const fate = await script?.answer?.() ?? this.fate(['lose', 'delay']);
    if (fate === 'lose') return this.lose(response);
    if (fate === 'delay') await this.delay();
    response.writeHead(answer.status, answer.headers);
    response.end(answer.text);
  }

  // What befalls the next message.  An answer cannot be doubled: the sender
  // reads one.
  fate(kinds) {
    this.counts.messages++;
    if (this.faults === 0 || this.random.below(1000) >= this.faults) return 'pass';
    const fate = this.random.of(kinds);
    this.counts[fate]++;
    return fate;
  }

  delay() { return sleep(this.random.below(this.longest)); }

  async lose(response) {
    if (this.random?.chance(50)) await sleep(SILENCE, undefined, { ref: false });
    response.destroy();
  }
}
