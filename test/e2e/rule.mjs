// The client's rule: never a new key while the outcome is open.  What an answer
// means, and what to send next; there is no other place that decides it.
//
//   open    it is not decided: `send` is what to do next, with the same key
//   done    this is what came of it
//   refused it was not done and will not be, or the key is another intent's
//   late    nobody can tell from the key any more: a person looks it up

export function judge(answer) {
  if (answer === null) return { outcome: 'open', send: 'query' };     // no answer
  switch (answer.status) {
    case 200: return { outcome: 'done' };
    case 422: return { outcome: 'refused' };
    case 410: return { outcome: 'late' };
    case 404: return { outcome: 'open', send: 'submit' };
    case 202:      // accepted, or being worked on
    case 409:      // being worked on, or not known: somebody finds out
    case 429:
    case 500:
    case 502:
    case 503:
    case 504: return { outcome: 'open', send: 'query' };
    default: throw new Error(`an answer that the rule does not know: ${answer.status}`);
  }
}
