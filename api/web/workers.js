// The table of workers. The server filters, sorts and cuts; the address holds the filter, the order and the page.

import { get } from "./api.js";
import { askMany, askNew, askOne } from "./confirm.js";
import { $, ago, badge, card, count, h, keyed, nothing, plural, put, say, took, words } from "./dom.js";
import { look, place, trail, worker as workerAddress } from "./place.js";

const ROWS = 50;
const TYPING_MS = 250;
const ACTIONS = ["start", "stop", "restart"];
const COLUMNS = [
  ["User", "user_id"], ["Phase", "phase"], ["Since", "since"], ["Start took", "start_latency_ms"], ["Beat"],
  ["Failures", "failures"], ["Reason"],
];

let section, search, heads, rows, empty, pager, shownText, bulk;
let changes = false;
let nextCursor = null;
let typing = 0;

export function make(me) {
  changes = me.may.includes("fleet:change");
  section = card("workers", "Workers", { class: "flat" });
  search = h("input", { id: "search", type: "search", maxlength: 128, placeholder: "user or reason", oninput: () => {
    clearTimeout(typing);
    typing = setTimeout(() => look({ q: search.value.trim() }, { replace: true }), TYPING_MS);
  } });
  put(section.aside, h("label", { for: "search" }, "Search"), search,
    changes ? h("button", { type: "button", id: "new-worker", onclick: askNew }, "Start a worker…") : null);
  const columns = changes ? [...COLUMNS, ["Actions"]] : COLUMNS;
  heads = columns.map(([name, sort]) => h("th", { scope: "col", role: "columnheader", "data-sort": sort, class: sort ? null : "only" },
    sort ? h("button", { type: "button", onclick: () => look({ sort: (place().query.sort || "user_id") === sort ? `-${sort}` : sort }) }, name) : name));
  rows = h("tbody", { role: "rowgroup" });
  empty = h("div", {});
  bulk = h("div", { class: "bulk" });
  shownText = h("span", { class: "quiet", id: "shown" });
  const turn = (name, to) => h("button", { type: "button", id: name.toLowerCase(), onclick: to }, name);
  pager = [
    turn("First", () => look({})),
    turn("Previous", () => look({ cursor: trail().at(-1) }, { trail: trail().slice(0, -1) })),
    turn("Next", () => look({ cursor: nextCursor }, { trail: [...trail(), place().query.cursor || ""] })),
  ];
  put(section.body, bulk,
    h("table", { role: "table", class: "workers" }, h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, heads)), rows),
    empty, h("nav", { class: "pages", "aria-label": "Pages of workers" }, pager, shownText));
  return section;
}

export function moved(here) {
  if (document.activeElement !== search) search.value = here.query.q || "";
  const sort = here.query.sort || "user_id";
  for (const head of heads) {
    const mine = head.dataset.sort === sort.replace("-", "");
    if (mine) head.setAttribute("aria-sort", sort.startsWith("-") ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  }
}

export function part(showCounts) {
  const query = new URLSearchParams({ limit: ROWS });
  for (const name of ["q", "phase", "sort", "cursor"]) if (place().query[name]) query.set(name, place().query[name]);
  return { id: "workers", path: `/v1/workers?${query}`, show: (page) => {
    showCounts(page.counts);
    showPage(page);
  } };
}

function filter() {
  const { q, phase } = place().query;
  return [phase && `phase ${words(phase)}`, q && `“${q}”`].filter(Boolean).join(" and ");
}

function showPage(page) {
  const focused = document.activeElement;
  keyed(rows, page.workers, (worker) => worker.user_id, makeRow, fillRow);
  // A button that was just used and does not apply any more hands the keyboard to its neighbour.
  if (focused?.disabled) focused.closest("tr")?.querySelector("button:enabled")?.focus();
  nextCursor = page.next_cursor;
  pager[0].disabled = pager[1].disabled = !place().query.cursor;
  pager[2].disabled = !nextCursor;
  const pages = Math.max(1, Math.ceil(page.total / ROWS));
  shownText.textContent = page.total ? `page ${count(trail().length + 1)} of ${count(pages)}` : "";
  put(empty, page.workers.length ? null : nothing(emptyWords(page)));
  showBulk(page.total);
}

function emptyWords(page) {
  if (filter()) return `Nobody matches ${filter()}.`;
  if (place().query.cursor) return "This page is empty now; go back to the first.";
  return page.total ? "" : "No workers yet. Start one: muster start u1";
}

function showBulk(total) {
  const named = filter();
  const text = named ? `${plural(total, "worker")} with ${named}` : plural(total, "worker");
  if (!bulk.firstChild) {
    bulk.append(h("span", { id: "matching" }), h("button", { type: "button", class: "plain", id: "clear", onclick: () => look({ q: "", phase: "" }) }, "Clear filter"));
    if (changes) bulk.append(h("span", { class: "push" }), ...ACTIONS.map((action) => h("button", { type: "button", "data-bulk": action, onclick: () => askAll(action) }, `${words(action)} all…`)));
  }
  say($("matching"), text);
  $("clear").hidden = !named;
  for (const button of bulk.querySelectorAll("[data-bulk]")) button.disabled = !total;
}

async function askAll(action) {
  const { q, phase } = place().query;
  const query = new URLSearchParams(Object.entries({ phase, q }).filter(([, value]) => value));
  const asked = query.size ? `?${query}` : "";
  const see = () => get(`/v1/bulk${asked}`);
  try {
    askMany(action, filter(), await see(), { query: asked, look: see });
  } catch (failure) {
    say($("trouble"), failure.message);
  }
}

function makeRow(worker) {
  const user = worker.user_id;
  const labels = changes ? [...COLUMNS.map(([name]) => name), "Actions"] : COLUMNS.map(([name]) => name);
  const cells = labels.map((label) => h("td", { role: "cell", "data-label": label, class: label.toLowerCase().split(" ")[0] }));
  cells[0].append(h("a", { href: workerAddress(user) }, user));
  cells[7]?.append(...ACTIONS.map((action) =>
    h("button", { type: "button", class: "tiny", "aria-label": `${action} ${user}`, onclick: () => askOne(user, action) }, action)));
  return h("tr", { role: "row" }, cells);
}

function fillRow(row, worker) {
  const { cells } = row;
  if (cells[1].dataset.shown !== worker.phase) {
    put(cells[1], badge(worker.phase));
    cells[1].dataset.shown = worker.phase;
  }
  const texts = [
    worker.since ? ago(worker.since) : "",
    worker.start_latency_ms === null ? "" : `${took(worker.start_latency_ms)}${worker.via ? ` ${worker.via}` : ""}`,
    worker.heartbeat_age_s === null ? "" : `${Math.round(worker.heartbeat_age_s)} s ago`,
    worker.failures ? count(worker.failures) : "",
    worker.reason || "",
  ];
  texts.forEach((text, at) => {
    if (cells[at + 2].textContent !== text) cells[at + 2].textContent = text;
  });
  cells[6].title = worker.reason || "";
  if (!cells[7]) return;
  const [start, stop, restart] = cells[7].children;
  start.disabled = worker.want === "running";
  stop.disabled = worker.want === "stopped";
  restart.disabled = worker.want !== "running";
}
