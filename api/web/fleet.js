// The whole fleet: how many are how, the pool, how long starts and heals take, queues, jobs; then every worker.

import { bar, heals, latencies } from "./charts.js";
import { card, count, facts, h, nothing, put, words } from "./dom.js";
import { address, look, place } from "./place.js";
import * as workers from "./workers.js";

const PHASES = ["ready", "starting", "connecting", "draining", "backing_off", "failed", "stopped"];
let tiles, pool, starts, healed, queues, jobs;

export const fleet = {
  title: () => "Fleet",

  make(here, me) {
    tiles = h("div", { id: "phases", role: "group", "aria-label": "Workers by phase; choose one to see only these" },
      PHASES.map((phase) => h("button", { type: "button", class: `tile ${phase}`, "aria-pressed": "false", "data-phase": phase,
        onclick: () => look({ phase: place().query.phase === phase ? "" : phase }) },
      h("strong", {}, "–"), h("span", {}, words(phase)))));
    pool = card("pool", "Warm pool");
    starts = card("starts", "Start times", { class: "wide" });
    healed = card("heals", "Heal times");
    queues = card("queues", "Queues");
    jobs = card("jobs", "Jobs");
    return [
      h("h1", { class: "hidden" }, "Fleet"),
      tiles,
      h("div", { class: "cards" }, starts, pool, healed, queues, jobs),
      workers.make(me),
    ];
  },

  moved: workers.moved,

  parts: () => [
    workers.part(showCounts),
    { id: "pool", path: "/v1/pool", show: showPool },
    { id: "starts", path: "/v1/starts?limit=500", show: showStarts },
    { id: "queues", path: "/v1/queues", show: showQueues, slow: true },
    { id: "jobs", path: "/v1/pools", show: showJobs, slow: true, missing: () => (jobs.hidden = true) },
  ],
};

function showCounts(counts) {
  if (!Object.keys(counts).length) window.dispatchEvent(new Event("changed")); // look again as soon as it is counted
  const chosen = place().query.phase;
  for (const tile of tiles.children) {
    const phase = tile.dataset.phase;
    tile.setAttribute("aria-pressed", String(phase === chosen));
    if (!(phase in counts)) continue;
    tile.firstChild.textContent = count(counts[phase]);
    tile.classList.toggle("none", !counts[phase]);
  }
}

function showPool(found) {
  pool.hidden = found.name === "none"; // a supervisor's: every worker has its user from the start
  const parts = [
    { name: "idle", value: found.idle, class: "good" },
    { name: "claimed", value: found.outstanding, class: "busy" },
    { name: "launching", value: found.launching, class: "cold" },
  ];
  put(pool.aside, found.version ? h("span", { class: "quiet" }, found.version) : null);
  put(pool.body,
    h("p", { class: "figure" }, h("strong", {}, count(found.idle)), h("span", { class: "quiet" }, ` idle of ${count(found.target)} wanted`)),
    bar("Warm pool", parts, { mark: found.target }),
    facts([...parts.map((part) => [h("span", { class: `key ${part.class}` }, part.name), count(part.value)]),
      [h("span", { class: "key target" }, "target"), count(found.target)]]));
}

function showStarts(found) {
  const repairs = found.filter((start) => start.heal_ms !== null);
  put(starts.aside, found.length ? h("span", { class: "quiet" }, `last ${count(found.length)} starts`) : null);
  put(starts.body, found.length ? latencies(found, Math.max(240, starts.body.clientWidth)) : nothing("No worker has started yet. Each start becomes a point here."));
  put(healed.body, repairs.length ? heals(found) : nothing("Nothing had to be healed yet."));
}

function showQueues(found) {
  queues.hidden = !found.length;
  put(queues.aside, h("a", { href: address("queues") }, "Look inside"));
  put(queues.body, h("table", { class: "small" },
    h("thead", {}, h("tr", {}, ["Queue", "Waiting", "In flight", "Given up"].map((name, at) => h("th", { scope: "col", class: at ? "number" : null }, name)))),
    h("tbody", {}, found.map((queue) => h("tr", {},
      h("th", { scope: "row" }, queue.name.replace(".fifo", "")),
      h("td", { class: "number" }, count(queue.depth)),
      h("td", { class: "number" }, count(queue.in_flight)),
      h("td", { class: "number" }, queue.dead_letter === null ? "–" : queue.dead_letter
        ? h("a", { class: "dead", href: address("queues", queue.name) }, count(queue.dead_letter)) : "0"))))));
}

function showJobs(found) {
  put(jobs.aside, h("a", { href: address("jobs") }, "All jobs"));
  put(jobs.body, found.length ? h("ul", { class: "pools" }, found.slice(0, 5).map(jobPool)) : nothing("No job was pushed yet."));
}

export function jobPool(found) {
  const parts = [
    { name: "done", value: found.done, class: "good" },
    { name: "running", value: found.claimed, class: "cold" },
    { name: "queued", value: found.pending, class: "waits" },
    { name: "poisoned", value: found.poisoned, class: "bad" },
  ];
  return h("li", {},
    h("div", { class: "row" }, h("a", { href: address("jobs", found.pool) }, found.pool),
      h("span", { class: "quiet" }, `${count(found.done)} done · ${count(found.claimed)} running · ${count(found.pending)} queued`,
        found.poisoned ? h("span", { class: "dead" }, ` · ${count(found.poisoned)} poisoned`) : "")),
    bar(found.pool, parts));
}

