// The API: one token, one way to ask, one stream of events.

const TOKEN = "muster-token";
const ANSWER_MS = 15_000;
const BULK_MS = 120_000; // thousands of commands, ten to a call
const SILENCE_MS = 40_000; // the stream says something every 15 s

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const token = {
  get: () => sessionStorage.getItem(TOKEN),
  set: (value) => sessionStorage.setItem(TOKEN, value),
  forget: () => sessionStorage.removeItem(TOKEN),
};

async function call(path, options = {}) {
  const headers = { ...options.headers, Authorization: `Bearer ${token.get()}` };
  let answer;
  try {
    answer = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (failure) {
    if (options.signal?.aborted && options.signal.reason?.name !== "TimeoutError") throw failure;
    throw new ApiError(0, "The API does not answer. Is it running, and is the network up?");
  }
  if (answer.ok) return answer;
  const problem = await answer.json().catch(() => ({}));
  throw new ApiError(answer.status, problem.detail || `The API answered ${answer.status}.`);
}

export async function get(path, signal) {
  const limit = AbortSignal.timeout(ANSWER_MS);
  const answer = await call(path, { signal: signal ? AbortSignal.any([signal, limit]) : limit });
  return answer.json();
}

/** A change. The key makes pressing again, after an answer was lost, the same change and not a second one. */
export async function change(method, path, { key, reason = "", body } = {}) {
  const headers = {};
  if (key) headers["Idempotency-Key"] = key;
  if (body) headers["Content-Type"] = "application/json";
  // A header carries only Latin letters; the body, where there is one, carries every word.
  else if (reason) headers["Muster-Reason"] = reason.replace(/[^\x20-\x7e]/g, "?");
  const answer = await call(path, {
    method, headers, body: body ? JSON.stringify({ ...body, reason }) : undefined, signal: AbortSignal.timeout(BULK_MS),
  });
  return answer.json();
}

export function newKey() {
  return Array.from(crypto.getRandomValues(new Uint32Array(4)), (part) => part.toString(16)).join("-");
}

/** Listen until the stream ends. fetch and not EventSource, which cannot send the token. */
export async function listen(signal, heard) {
  const silent = new AbortController();
  let watchdog = 0;
  const alive = () => {
    clearTimeout(watchdog);
    watchdog = setTimeout(() => silent.abort(), SILENCE_MS);
  };
  try {
    alive();
    const answer = await call("/v1/events", { signal: AbortSignal.any([signal, silent.signal]) });
    heard(null);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      alive();
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const line = part.split("\n").find((each) => each.startsWith("data: "));
        if (line) heard(JSON.parse(line.slice(6)));
      }
    }
  } finally {
    clearTimeout(watchdog);
  }
}
