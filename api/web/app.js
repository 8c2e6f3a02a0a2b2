// The page: signing in, which view is shown, and when it is read again. The server filters, sorts and cuts; a view
// only says what to ask for and how to show it.

import { ApiError, get, listen, token } from "./api.js";
import { audit } from "./audit.js";
import { $, clock, h, put, say } from "./dom.js";
import { fleet } from "./fleet.js";
import { jobs } from "./jobs.js";
import { address, place, worker as workerAddress } from "./place.js";
import { queues } from "./queues.js";
import { worker } from "./worker.js";

const RELOAD_MS = 5000; // also the pace of new attempts while the API is away
const EVENTS_MS = 400;
const VIEWS = { fleet, worker, queues, jobs, audit };
const NAV = { fleet: "Fleet", queues: "Queues", jobs: "Jobs", audit: "Audit" };

let me = null;
let shown = null; // the view on the page, and what makes it another one
let reading = null; // the AbortController of the read under way
let readAgain = false;
let listening = null; // the AbortController of the event stream
let soon = 0;
let readAt = null;
let live = false;

// --- reading ---------------------------------------------------------------------------------------------------

async function read({ fresh = false, part = "all" } = {}) {
  if (!token.get() || document.hidden) return;
  if (reading && !fresh) {
    readAgain = true;
    return;
  }
  reading?.abort();
  const mine = (reading = new AbortController());
  const failed = (await signedIn(mine)) || (await readParts(mine, part));
  if (mine !== reading) return; // a newer read, or a signing out, has taken over
  reading = null;
  if (failed?.status === 401) {
    signOut(`The API refused this token: ${failed.message}`);
    return;
  }
  if (failed && !(failed instanceof ApiError)) console.error(failed);
  say($("trouble"), failed ? told(failed) : "");
  if (!failed) readAt = new Date();
  pulse();
  if (!listening && me) hear();
  if (readAgain) {
    readAgain = false;
    readSoon();
  }
}

/** Who this token is, asked once. */
async function signedIn(mine) {
  if (me) return null;
  try {
    me = await get("/v1/me", mine.signal);
  } catch (failure) {
    return failure;
  }
  if (mine === reading) show();
  return null;
}

/** Each part is shown as soon as it comes; one that fails goes pale and leaves the others alone. */
async function readParts(mine, part) {
  if (!shown) return null;
  const parts = shown.view.parts(place(), me).filter((each) => part === "all" || !each.slow);
  const failures = await Promise.all(parts.map(async (each) => {
    try {
      const found = await get(each.path, mine.signal);
      if (mine === reading) {
        each.show(found);
        $(each.id)?.classList.remove("stale");
      }
      return null;
    } catch (failure) {
      if (mine !== reading) return failure;
      if (each.missing && [403, 404, 409].includes(failure.status)) {
        each.missing(failure);
        return null;
      }
      $(each.id)?.classList.add("stale");
      return failure;
    }
  }));
  return failures.find(Boolean);
}

const told = (failure) => `${failure.message} What is pale below may be old. Trying again every 5 s.`;

function readSoon() {
  soon ||= setTimeout(() => {
    soon = 0;
    read({ part: "quick" });
  }, EVENTS_MS);
}

async function hear() {
  const mine = (listening = new AbortController());
  try {
    if (!me.may.includes("fleet:read")) return; // events are of everybody; one's own worker is read every 5 s
    await listen(mine.signal, (event) => {
      live = true;
      pulse();
      if (!event || !shown?.view.minds || shown.view.minds(event, place())) readSoon();
    });
  } catch (failure) {
    // The reload every few seconds asks the same API, says what is wrong, and listens anew.
    console.info("The event stream ended:", failure.message);
  } finally {
    if (listening === mine) listening = null;
    live = false;
    pulse();
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

function pulse() {
  const element = $("pulse");
  element.hidden = !readAt;
  element.classList.toggle("live", live);
  element.textContent = readAt ? `${live ? "Live" : "Not live"} · ${clock(readAt)}` : "";
}

// --- what is shown ---------------------------------------------------------------------------------------------

function show() {
  const signed = Boolean(token.get());
  $("main").hidden = $("forget").hidden = !signed;
  $("sign-in").hidden = signed;
  $("nav").hidden = !me?.may.includes("fleet:read");
  if (!signed || !me) return;
  const own = !me.may.includes("fleet:read");
  if (own && location.hash !== workerAddress(me.user_id)) {
    history.replaceState(null, "", workerAddress(me.user_id)); // one's own worker is all there is to see
  }
  const here = place();
  const view = VIEWS[here.view] || fleet;
  const key = `${here.view}/${here.name}`;
  $("me").textContent = me.subject === me.role ? me.role : `${me.subject} (${me.role})`;
  put($("nav"), Object.entries(NAV).map(([name, title]) => {
    const current = VIEWS[name] === view || (view === worker && name === "fleet");
    return h("a", { href: address(name), "aria-current": current ? "page" : null }, title);
  }));
  if (shown?.key === key) {
    view.moved?.(here);
    return;
  }
  const first = !shown;
  shown = { view, key };
  document.title = `${view.title(here)} · Muster`;
  put($("main"), view.make(here, me));
  view.moved?.(here);
  if (!first) $("main").focus({ preventScroll: true });
}

function moved() {
  show();
  read({ fresh: true });
}

function signOut(why = "") {
  pause();
  token.forget();
  if ($("confirm").open) $("confirm").close();
  // What the token showed must not stay readable without it.
  me = shown = readAt = null;
  for (const part of [$("main"), $("nav"), $("me"), $("notice")]) part.replaceChildren();
  document.title = "Muster";
  pulse();
  show();
  say($("trouble"), why);
  $("token").focus();
}

$("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  const given = $("token").value.trim();
  if (!/^[\x21-\x7e]+$/.test(given)) {
    say($("trouble"), "A token has only letters, digits and signs, without spaces. Copy it again.");
    return;
  }
  token.set(given);
  $("token").value = "";
  say($("trouble"), "");
  show();
  read({ fresh: true });
});
$("forget").addEventListener("click", () => signOut());
$("skip").addEventListener("click", (event) => {
  event.preventDefault();
  ($("main").hidden ? $("token") : $("main")).focus();
});
window.addEventListener("hashchange", moved);
window.addEventListener("moved", moved);
window.addEventListener("changed", readSoon);
window.addEventListener("refused", () => signOut("The API refused this token."));
document.addEventListener("visibilitychange", () => (document.hidden ? pause() : read({ fresh: true })));
setInterval(read, RELOAD_MS);

show();
read();
