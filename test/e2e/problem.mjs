// An idem_answer as an HTTP answer: status, Retry-After, and a body that says
// what is known and what to do, as application/problem+json (RFC 9457) when it
// is not what was asked for.

// By verdict, or by state where there is none (idem_status) or more to say.
const PROBLEMS = {
  mismatch: ['Other parameters under this key', 'The key was used with other parameters. Another intent needs another key.'],
  absent: ['Not on record', 'Nothing is known of this key yet. Send the request again with the same key.'],
  unconfirmed: ['Not on record here', 'This server may lag behind. Send the request again with the same key.'],
  accepted: ['Accepted', 'It will be worked on. Ask again.'],
  processing: ['In progress', 'It is being worked on. Ask again, with the same key.'],
  failed: ['Failed for good', 'It was not done, and will not be. Another try is another intent, with another key.'],
  unknown: ['The outcome is not known', 'It may have been done. It is being looked into; do not use another key.'],
  expired: ['Too late to tell', 'The key is older than what is remembered. Look up what the operation did.'],
};

// Retry-After counts whole seconds, and 0 would mean "at once".
const retryAfter = (answer) => Math.max(1, Math.ceil(Number(answer.retry_after)));

export function httpAnswer(answer) {
  const known = { id: answer.id, state: answer.state, advice: answer.advice };
  const headers = answer.retry_after === null ? {} : { 'Retry-After': retryAfter(answer) };
  if (answer.http < 400) return { status: answer.http, headers, body: { ...known, result: answer.result } };
  const kind = answer.verdict === 'mismatch' ? 'mismatch' : answer.state;
  const extra = kind === 'failed' ? { error: answer.error } : {};
  return problem(answer.http, kind, ...PROBLEMS[kind], { ...known, ...extra }, headers);
}

export const problem = (status, kind, title, detail, more = {}, headers = {}) => ({
  status,
  headers: { 'Content-Type': 'application/problem+json', ...headers },
  body: { type: `/problems/${kind}`, title, status, detail, ...more },
});
