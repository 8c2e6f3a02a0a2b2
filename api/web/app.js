// The fleet page. The server filters, sorts and cuts; the address holds what is looked at; this file only shows it.
// Everything that comes from the API is written as text, never as markup.
"use strict";

const RELOAD_MS = 5000; // also the pace of new attempts while the API is away
const EVENTS_MS = 1000; // lists are about a second old: reading sooner after an event would show nothing new
const TYPING_MS = 250;
const ANSWER_MS = 15000;
const SILENCE_MS = 40000; // the stream says something every 15 s
const NOTICE_MS = 10000;
const ROWS = 50;
const TOKEN = "muster-token";

const CONSEQUENCES = {
  start: "A worker is started for this user, and kept alive from then on.",
  stop: "Its worker finishes what it does and ends. It stays stopped until somebody starts it.",
  restart: "Its worker finishes what it does and ends; a new one takes its place at once.",
};

const $ = (id) => document.getElementById(id);
const rows = new Map(); // user id -> its <tr>, kept over reloads so that the keyboard keeps its place
let reading = null; // the AbortController of the read under way
let readAgain = false;
let listening = null; // the AbortController of the event stream
let soon = 0; // timer of the reload that events asked for
let typing = 0;
let noticed = 0;
let readAt = null;
let nextCursor = null;

class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function make(tag, text = "", classes = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  made.className = classes;
  return made;
}

function say(element, text) {
  // Only a change is written: screen readers speak an alert again each time it is.
  if (element.textContent !== text) element.textContent = text;
  element.hidden = !text;
}

// --- the API -------------------------------------------------------------------------------------------------

async function call(path, options = {}) {
  const headers = { ...options.headers, Authorization: `Bearer ${sessionStorage.getItem(TOKEN)}` };
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

async function get(path, signal) {
  const answer = await call(path, { signal: AbortSignal.any([signal, AbortSignal.timeout(ANSWER_MS)]) });
  return answer.json();
}

// --- what is looked at: the address --------------------------------------------------------------------------

function view() {
  const query = new URLSearchParams(location.search);
  return Object.fromEntries(["q", "phase", "sort", "cursor"].map((name) => [name, query.get(name) || ""]));
}

function look(change, { replace = false, trail = [] } = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries({ ...view(), cursor: "", ...change })) if (value) query.set(name, value);
  const address = query.size ? `?${query}` : location.pathname;
  history[replace ? "replaceState" : "pushState"]({ trail }, "", address);
  read({ fresh: true });
}

function trail() {
  return history.state?.trail || []; // the cursors of the pages before this one
}

// --- reading -------------------------------------------------------------------------------------------------

async function read({ fresh = false, all = true } = {}) {
  if (!sessionStorage.getItem(TOKEN) || document.hidden) return;
  if (reading && !fresh) {
    readAgain = true;
    return;
  }
  reading?.abort();
  const mine = (reading = new AbortController());
  const query = new URLSearchParams({ limit: ROWS });
  for (const [name, value] of Object.entries(view())) if (value) query.set(name, value);
  const parts = [{ id: "workers", path: `/v1/workers?${query}`, show: showWorkers }];
  if (all) {
    parts.push({ id: "pool", path: "/v1/pool", show: showPool }, { id: "queues", path: "/v1/queues", show: showQueues });
  }
  const failures = await Promise.all(
    parts.map(async ({ id, path, show }) => {
      try {
        const found = await get(path, mine.signal);
        if (mine === reading) show(found);
        return null;
      } catch (failure) {
        if (mine === reading) pale(id, true);
        return failure;
      }
    }),
  );
  if (mine !== reading) return; // a newer read, or a signing out, has taken over
  reading = null;
  const failed = failures.find(Boolean);
  if (failed?.status === 401) {
    signOut("The API refused this token.");
    return;
  }
  if (failed && !(failed instanceof ApiError)) console.error(failed);
  if (failed || all) say($("trouble"), failed ? `${failed.message} What is pale below may be old. Trying again every 5 s.` : "");
  if (!failures[0]) readAt = new Date();
  $("pulse").textContent = readAt ? `as of ${readAt.toLocaleTimeString()}` : "";
  if (!listening) listen();
  if (readAgain) {
    readAgain = false;
    readSoon();
  }
}

function readSoon() {
  soon ||= setTimeout(() => {
    soon = 0;
    read({ all: false });
  }, EVENTS_MS);
}

async function listen() {
  // fetch and not EventSource, which cannot send the token.
  const mine = (listening = new AbortController());
  let watchdog = 0;
  const heard = () => {
    clearTimeout(watchdog);
    watchdog = setTimeout(() => mine.abort(), SILENCE_MS);
  };
  try {
    heard();
    const answer = await call("/v1/events", { signal: mine.signal });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      heard();
      // Every line is short and only its presence counts; one cut in two is made up for by the next reload.
      if (value.includes("data:")) readSoon();
    }
  } catch (failure) {
    // The reload every few seconds asks the same API, says what is wrong, and listens anew.
    console.info("The event stream ended:", failure.message);
  } finally {
    clearTimeout(watchdog);
    if (listening === mine) listening = null;
  }
}

function pause() {
  reading?.abort();
  listening?.abort();
  reading = listening = null;
  clearTimeout(soon);
  soon = 0;
  readAgain = false;
}

// --- showing -------------------------------------------------------------------------------------------------

function pale(part, old) {
  $(part).classList.toggle("stale", old);
  if (part === "workers") $("phases").classList.toggle("stale", old); // both come in one answer
}

function showWorkers(page) {
  pale("workers", false);
  const asked = view();
  showPhases(page.counts, asked.phase);
  const body = document.querySelector("tbody");
  const users = new Set(page.workers.map((worker) => worker.user_id));
  for (const [user, row] of rows) {
    if (users.has(user)) continue;
    row.remove();
    rows.delete(user);
  }
  page.workers.forEach((worker, at) => {
    const row = rows.get(worker.user_id) || makeRow(worker.user_id);
    fillRow(row, worker);
    if (body.children[at] !== row) body.insertBefore(row, body.children[at] || null);
  });
  nextCursor = page.next_cursor;
  $("first").disabled = !asked.cursor;
  $("previous").disabled = !trail().length;
  $("next").disabled = !nextCursor;
  $("shown").textContent = `${page.workers.length} of ${page.total}`;
  const filtered = asked.q || asked.phase || asked.cursor;
  say($("empty"), page.workers.length ? "" : filtered ? "No worker matches." : "No workers yet. Start one: muster start u1");
  for (const head of document.querySelectorAll("th[data-sort]")) {
    const sort = asked.sort || "user_id";
    const turned = sort.startsWith("-");
    if (sort.replace("-", "") === head.dataset.sort) head.setAttribute("aria-sort", turned ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  }
}

function showPhases(counts, chosen) {
  const all = Object.values(counts).reduce((sum, count) => sum + count, 0);
  for (const [phase, count] of [["", all], ...Object.entries(counts)]) {
    let button = document.querySelector(`#phases button[data-phase="${phase}"]`);
    if (!button) {
      button = make("button");
      button.type = "button";
      button.dataset.phase = phase;
      button.append(make("strong", "", phase), make("span", phase ? phase.replace("_", " ") : "all"));
      button.addEventListener("click", () => look({ phase: view().phase === phase ? "" : phase }));
      $("phases").append(button);
    }
    button.firstChild.textContent = count;
    button.classList.toggle("none", !count);
    button.setAttribute("aria-pressed", String(phase === chosen));
  }
}

function showPool(pool) {
  pale("pool", false);
  $("pool").hidden = pool.name === "none"; // a supervisor's: every worker has its user from the start
  const numbers = ["target", "idle", "outstanding", "launching"].map((name) => [name, pool[name]]);
  if (pool.version) numbers.push(["version", pool.version]);
  document.querySelector("#pool dl").replaceChildren(
    ...numbers.map(([name, value]) => {
      const pair = make("div");
      pair.append(make("dt", name), make("dd", value));
      return pair;
    }),
  );
}

function showQueues(queues) {
  pale("queues", false);
  $("queues").hidden = !queues.length;
  document.querySelector("#queues ul").replaceChildren(
    ...queues.map((queue) => {
      const item = make("li");
      item.append(make("strong", queue.name), ` ${queue.depth} waiting, ${queue.in_flight} in flight`);
      if (queue.dead_letter !== null) item.append(", ", make("span", `${queue.dead_letter} given up`, queue.dead_letter ? "dead" : ""));
      return item;
    }),
  );
}

const CELLS = ["User", "Phase", "Since", "Start took", "Failures", "Reason", "Actions"];

function makeRow(user) {
  const row = make("tr");
  row.setAttribute("role", "row");
  for (const label of CELLS) {
    const cell = make("td");
    cell.setAttribute("role", "cell");
    cell.dataset.label = label;
    row.append(cell);
  }
  row.cells[0].textContent = user;
  row.cells[5].className = "reason";
  row.cells[6].className = "actions";
  for (const action of Object.keys(CONSEQUENCES)) {
    const button = make("button", action);
    button.type = "button";
    button.setAttribute("aria-label", `${action} ${user}`);
    button.addEventListener("click", () => ask(user, action));
    row.cells[6].append(button);
  }
  rows.set(user, row);
  return row;
}

function fillRow(row, worker) {
  const write = (at, text, classes = "fixed") => {
    row.cells[at].textContent = text;
    row.cells[at].className = classes;
  };
  write(1, worker.phase.replace("_", " "), `phase fixed ${worker.phase}`);
  write(2, worker.since ? ago(worker.since) : "");
  row.cells[2].title = worker.since ? new Date(worker.since).toLocaleString() : "";
  write(3, worker.start_latency_ms === null ? "" : `${worker.start_latency_ms} ms${worker.via ? `, ${worker.via}` : ""}`);
  write(4, worker.failures || "");
  write(5, worker.reason || "", "reason");
  const focused = document.activeElement;
  const [start, stop, restart] = row.cells[6].children;
  start.disabled = worker.want === "running";
  stop.disabled = worker.want === "stopped";
  restart.disabled = worker.want !== "running";
  // A button that was just used and does not apply any more hands the keyboard to its neighbour.
  if (focused?.disabled && row.contains(focused)) row.querySelector("button:enabled").focus();
}

function ago(moment) {
  const seconds = Math.max(0, Math.round((Date.now() - new Date(moment)) / 1000));
  if (seconds < 90) return `${seconds} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 129600 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}

// --- commands ------------------------------------------------------------------------------------------------

function ask(user, action) {
  // One key per question: pressing again after an answer was lost is the same command, not a second one.
  const key = Array.from(crypto.getRandomValues(new Uint32Array(4)), (part) => part.toString(16)).join("-");
  const go = $("go");
  $("question").textContent = `${action} ${user}?`;
  $("consequence").textContent = CONSEQUENCES[action];
  say($("refusal"), "");
  go.textContent = action;
  go.disabled = false;
  go.onclick = async () => {
    go.disabled = true;
    try {
      await call(`/v1/workers/${encodeURIComponent(user)}/${action}`, {
        method: "POST",
        headers: { "Idempotency-Key": key },
        signal: AbortSignal.timeout(ANSWER_MS),
      });
      $("notice").textContent = `${action} of ${user} was accepted; the list follows when it is done.`;
      clearTimeout(noticed);
      noticed = setTimeout(() => ($("notice").textContent = ""), NOTICE_MS);
      $("confirm").close();
      readSoon();
    } catch (failure) {
      if (failure.status === 401) signOut("The API refused this token.");
      else say($("refusal"), failure.message);
    } finally {
      go.disabled = false;
    }
  };
  $("confirm").showModal();
}

// --- the token -----------------------------------------------------------------------------------------------

function signOut(why = "") {
  pause();
  sessionStorage.removeItem(TOKEN);
  if ($("confirm").open) $("confirm").close();
  // What the token showed must not stay readable without it.
  rows.clear();
  for (const part of ["tbody", "#phases", "#pool dl", "#queues ul"]) document.querySelector(part).replaceChildren();
  $("pulse").textContent = $("notice").textContent = "";
  readAt = null;
  show(false);
  say($("trouble"), why);
  $("token").focus();
}

function show(signedIn) {
  $("fleet").hidden = $("forget").hidden = !signedIn;
  $("sign-in").hidden = signedIn;
}

$("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  const token = $("token").value.trim();
  if (!/^[\x21-\x7e]+$/.test(token)) {
    say($("trouble"), "A token has only letters, digits and signs, without spaces. Copy it again.");
    return;
  }
  sessionStorage.setItem(TOKEN, token);
  $("token").value = "";
  say($("trouble"), "");
  show(true);
  read({ fresh: true });
});
$("forget").addEventListener("click", () => signOut());
$("search").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => look({ q: $("search").value.trim() }, { replace: true }), TYPING_MS);
});
for (const head of document.querySelectorAll("th[data-sort]")) {
  const name = head.dataset.sort;
  head.firstChild.addEventListener("click", () => look({ sort: (view().sort || "user_id") === name ? `-${name}` : name }));
}
$("first").addEventListener("click", () => look({}));
$("next").addEventListener("click", () => look({ cursor: nextCursor }, { trail: [...trail(), view().cursor] }));
$("previous").addEventListener("click", () => look({ cursor: trail().at(-1) }, { trail: trail().slice(0, -1) }));
window.addEventListener("popstate", () => {
  $("search").value = view().q;
  read({ fresh: true });
});
document.addEventListener("visibilitychange", () => (document.hidden ? pause() : read({ fresh: true })));
setInterval(read, RELOAD_MS);

$("search").value = view().q;
show(Boolean(sessionStorage.getItem(TOKEN)));
read();
