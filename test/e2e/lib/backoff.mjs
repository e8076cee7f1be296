// How long to wait before the next try.

// Full jitter, as idem_backoff: callers that were refused together do not come
// back together.
export const backoff = (attempt, base, cap) => Math.random() * Math.min(cap, base * 2 ** attempt);
