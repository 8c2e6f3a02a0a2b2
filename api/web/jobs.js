// Job pools with their progress, and the jobs of one pool.

import { change } from "./api.js";
import { ask } from "./confirm.js";
import { ago, badge, card, count, facts, full, h, nothing, plural, put, span } from "./dom.js";
import { jobPool } from "./fleet.js";
import { look, place, trail } from "./place.js";

const ROWS = 50;
const STATUSES = ["", "pending", "claimed", "done", "poisoned", "cancelled"];
const TONES = { pending: "starting", claimed: "connecting", done: "ready", poisoned: "failed", cancelled: "stopped" };
let pools, list, chosen, changes, pager, filters, following;

export const jobs = {
  title: (here) => here.name || "Jobs",

  make(here, me) {
    changes = me.may.includes("fleet:change");
    chosen = here.name;
    pools = card("pools", chosen ? "Job pool" : "Job pools", { class: "flat" });
    list = card("jobs", "Jobs", { class: "flat" });
    list.hidden = !chosen;
    filters = h("div", { class: "filters", role: "group", "aria-label": "Jobs by status" }, STATUSES.map((status) =>
      h("button", { type: "button", class: "tiny", "data-status": status, onclick: () => look({ status }) }, status || "all")));
    pager = [
      h("button", { type: "button", onclick: () => look({ cursor: trail().at(-1) }, { trail: trail().slice(0, -1) }) }, "Newer"),
      h("button", { type: "button", onclick: () => look({ cursor: following }, { trail: [...trail(), place().query.cursor || ""] }) }, "Older"),
    ];
    put(list.aside, filters);
    return [h("h1", { class: "hidden" }, "Jobs"), pools, list];
  },

  moved(here) {
    for (const button of filters.children) button.setAttribute("aria-pressed", String((here.query.status || "") === button.dataset.status));
  },

  parts(here) {
    if (!chosen) return [{ id: "pools", path: "/v1/pools", show: showPools, missing: none }];
    const query = new URLSearchParams({ limit: ROWS });
    if (here.query.status) query.set("status", here.query.status);
    if (here.query.cursor) query.set("before", here.query.cursor);
    const pool = encodeURIComponent(chosen);
    return [
      { id: "pools", path: `/v1/pools/${pool}`, show: showPool, missing: none },
      { id: "jobs", path: `/v1/pools/${pool}/jobs?${query}`, show: showJobs, missing: none },
    ];
  },
};

function none() {
  put(pools.body, nothing("This deployment runs no jobs."));
}

function showPools(found) {
  put(pools.body, found.length ? h("ul", { class: "pools" }, found.map(jobPool))
    : nothing("No job was pushed yet. Try: muster jobs push echo-pool '{\"hello\": 1}'"));
}

function showPool(found) {
  put(pools.body, h("ul", { class: "pools" }, jobPool(found)), facts([
    ["Workers", `${count(found.workers)} of at most ${count(found.max_workers)}`],
    found.oldest_pending_s ? ["Oldest waits", span(found.oldest_pending_s)] : null,
    ["Cancelled", count(found.cancelled)],
    found.pin ? ["Pinned to", found.pin] : null,
  ], "inline"));
  if (!changes) return;
  if (!pools.aside.firstChild) {
    pools.aside.append(h("button", { type: "button", id: "redrive-jobs", onclick: redrive }, "Run the poisoned again…"));
  }
  pools.aside.firstChild.disabled = !found.poisoned;
}

function showJobs(found) {
  following = found.next;
  pager[0].disabled = !place().query.cursor;
  pager[1].disabled = !following;
  put(list.body, found.jobs.length ? h("div", { class: "scroll" }, h("table", {},
    h("thead", {}, h("tr", {}, ["Job", "Status", "Pushed", "Attempts", "Progress or error"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, found.jobs.map(jobRow)))) : nothing("No such jobs."),
  h("nav", { class: "pages", "aria-label": "Pages of jobs" }, pager));
}

function jobRow(job) {
  const shown = badge(TONES[job.status]);
  shown.textContent = job.status;
  const created = new Date(job.created_at * 1000);
  return h("tr", {},
    h("th", { scope: "row" }, `${job.id} ${job.kind}`),
    h("td", {}, shown),
    h("td", { title: full(created) }, `${ago(created)} ago`),
    h("td", {}, `${count(job.attempts)} of ${count(job.max_retries)}`),
    h("td", { class: "reason" }, job.error ? h("span", { class: "dead" }, String(job.error).trim().split("\n").at(-1)) : progress(job)));
}

function progress(job) {
  const said = job.progress;
  if (!said || job.status !== "claimed") return "";
  return [said.fraction === undefined ? "" : `${Math.round(said.fraction * 100)} %`, said.note].filter(Boolean).join(" · ");
}

function redrive() {
  ask({
    question: `Run the poisoned jobs of ${chosen} again?`,
    body: h("p", {}, "Each gets all its attempts anew. What caused the failures should be mended first."),
    label: "Run again",
    go: async (reason) => {
      const done = await change("POST", `/v1/pools/${encodeURIComponent(chosen)}/redrive`, { reason });
      return `${plural(done.ids.length, "job")} queued again.`;
    },
  });
}
