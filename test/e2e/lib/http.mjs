// HTTP between the processes: JSON out, JSON in, and a caller that knows what
// it knows.  What matters here is the third way an exchange can end.

import http from 'node:http';

const agent = new http.Agent({ keepAlive: true });
const MOST_BYTES = 1 << 20;

// No answer.  `sent` is false only if the far side cannot have heard of it.
export class NoAnswer extends Error {
  constructor(reason, sent) {
    super(`no answer (${reason})`);
    this.sent = sent;
  }
}

class TooLarge extends Error {}

// One request and its answer, or NoAnswer after `patience` milliseconds.  Body
// and answer are text: who reads numbers from JSON must not have lost digits.
export function exchange(url, { method = 'GET', headers = {}, text, patience = 1000 } = {}) {
  return new Promise((resolve, reject) => {
    const request = http.request(url, { method, headers, agent }, (response) => {
      body(response).then((answer) => {
        clearTimeout(timer);
        resolve({ status: response.statusCode, headers: response.headers, text: answer });
      }, failed);
    });
    const timer = setTimeout(() => request.destroy(new NoAnswer('time is up', true)), patience);
    const failed = (error) => {
      clearTimeout(timer);
      reject(error instanceof NoAnswer ? error
        : error.code === 'ECONNREFUSED' ? new NoAnswer('refused', false) : new NoAnswer('connection lost', true));
    };
    request.on('error', failed);
    request.end(text);
  });
}

// The same with the answer read as JSON.  An answer that cannot be read (a
// proxy's page, half of a body) is none.
export async function exchangeJson(url, options) {
  const answer = await exchange(url, options);
  if (answer.text === '') return { ...answer, body: null };
  try {
    return { ...answer, body: JSON.parse(answer.text) };
  } catch {
    throw new NoAnswer('not readable', true);
  }
}

// A server on a free port of the loopback address.  handle({method, path,
// headers, text}) returns {status, headers, body}; what it throws is a 500.  No
// cache on the way may answer for it.
export function serve(handle) {
  return listen(async (request, response) => {
    let answer;
    try {
      const { method, url, headers } = request;
      answer = await handle({ method, path: url.split('/').slice(1).map(decodeURIComponent), headers, text: await body(request) });
    } catch (error) {
      if (!(error instanceof TooLarge)) console.error(error);
      answer = error instanceof TooLarge ? { status: 413, body: { title: 'Too large' } } : { status: 500, body: { title: 'Internal error' } };
    }
    response.writeHead(answer.status, { 'Content-Type': 'application/json', 'Cache-Control': 'no-store', ...answer.headers });
    response.end(JSON.stringify(answer.body));
  });
}

// Resolves to the port.
export function listen(onRequest) {
  return new Promise((resolve, reject) => {
    const server = http.createServer(onRequest);
    server.on('error', reject);
    server.listen(0, '127.0.0.1', () => resolve(server.address().port));
  });
}

export async function body(stream) {
  const chunks = [];
  let size = 0;
  for await (const chunk of stream) {
    size += chunk.length;
    if (size > MOST_BYTES) throw new TooLarge('body too large');
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString('utf8');
}
