// The client's rule: never a new key while the outcome is open.  What an answer
// means, and what to send next; there is no other place that decides it.
//
//   open    it is not decided: `send` is what to do next, with the same key
//   done    this is what came of it
//   refused it was not done and will not be, or the key is another intent's
//   wrong   this request will never be taken; where an earlier try had no answer,
//           that one may have been, so a person asks before there is a new key
//   late    nobody can tell from the key any more: a person looks it up

const OPEN = { outcome: 'open', send: 'query' };

export function judge(answer) {
  if (answer === null) return OPEN;
  const { status, body } = answer;
  // a failure that may be tried again, whatever its number
  if (body?.state === 'failed' && body.advice === 'retry_same_key') return { outcome: 'open', send: 'submit' };
  switch (status) {
    case 200: return body?.state === 'succeeded' ? { outcome: 'done' } : OPEN;
    case 422: return ['mismatch', 'failed'].includes(kindOf(body)) ? { outcome: 'refused' } : OPEN;
    case 410: return body?.state === 'expired' ? { outcome: 'late' } : OPEN;
    case 404: return ['absent', 'unconfirmed'].includes(body?.state) ? { outcome: 'open', send: 'submit' } : OPEN;
    case 400:
    case 413: return { outcome: 'wrong' };
    // 202 and 409: being worked on, or not known; 401 and 403: the same key again
    // once the caller may; 429 and 5xx: nothing is known; and so with what no
    // service of this kind answers
    default: return OPEN;
  }
}

const kindOf = (body) => body?.type?.split('/').pop();
