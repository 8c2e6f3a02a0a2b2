// One user's worker: how it is and why, what comes next, its time line, its beats, orders, state and log.

import { beat } from "./charts.js";
import { askOne } from "./confirm.js";
import { ago, badge, card, clock, count, facts, full, h, nothing, put, span, took } from "./dom.js";
import { address } from "./place.js";

const LINES = 200;
const TONES = {
  ready: "good", "mark taken": "good", "mark restored": "busy", "task stopped": "bad", "launch failed": "bad",
  "start aborted": "bad", "given up": "bad", "begin repair": "busy", "begin stop": "quiet", "mark dropped": "quiet",
};
let head, now, line, orders, state, log, trouble;

export const worker = {
  title: (here) => here.name,

  make(here, me) {
    const changes = me.may.some((right) => right.endsWith(":change"));
    const fleet = me.may.includes("fleet:read");
    head = { phase: h("span", {}), since: h("span", { class: "quiet" }), actions: [] };
    if (changes) {
      head.actions = ["start", "stop", "restart"].map((action) =>
        h("button", { type: "button", onclick: () => askOne(here.name, action) }, action));
    }
    trouble = h("div", {});
    now = card("now", "Now");
    line = card("line", "Time line");
    orders = card("orders", "Orders");
    state = card("state", "State");
    log = card("log", "Log");
    orders.hidden = state.hidden = true;
    return [
      fleet ? h("nav", { class: "crumbs", "aria-label": "Way back" }, h("a", { href: address("fleet") }, "← Fleet")) : null,
      h("div", { class: "title" }, h("h1", {}, here.name), head.phase, head.since, h("span", { class: "push" }), head.actions),
      trouble,
      h("div", { class: "cards two" }, h("div", { class: "stack" }, now, state, orders), line),
      log,
    ].filter(Boolean);
  },

  minds: (event, here) => event.user_id === here.name,

  parts(here) {
    const user = encodeURIComponent(here.name);
    return [
      { id: "now", path: `/v1/workers/${user}/timeline`, show, missing: (failure) => put(trouble, nothing(failure.message)) },
      { id: "log", path: `/v1/workers/${user}/logs?lines=${LINES}`, show: showLog, missing: (failure) => put(log.body, nothing(failure.message)) },
      { id: "orders", path: `/v1/users/${user}/orders?limit=20`, show: showOrders, slow: true, missing: () => (orders.hidden = true) },
    ];
  },
};

function show(found) {
  const { worker: seen, mark, lease, next } = found;
  put(head.phase, badge(seen.phase));
  head.since.textContent = seen.since ? `for ${ago(seen.since)}` : "";
  const [start, stop, restart] = head.actions;
  if (start) {
    start.disabled = seen.want === "running";
    stop.disabled = seen.want === "stopped";
    restart.disabled = seen.want !== "running";
  }
  put(trouble, seen.reason && seen.phase !== "ready" && seen.phase !== "stopped"
    ? h("p", { class: "trouble" }, h("strong", {}, "Why: "), seen.reason, seen.failures ? ` (${count(seen.failures)} failures in a row)` : "") : null);
  put(now.body,
    mark ? h("div", { class: "beats" }, h("p", {}, h("strong", {}, `Last beat ${span(mark.beat_age_s)} ago`),
      h("span", { class: "quiet" }, ` · the mark ends in ${span(mark.ends_in_s)} unless it beats`)), beat(mark.beat_age_s)) : null,
    facts([
      ["Wanted", seen.want || "unknown"],
      ["Epoch", String(seen.epoch || "–")],
      mark && ["Worker", mark.worker_id],
      ["Task", seen.task_id || "none"],
      seen.pid && ["Process", `${seen.pid}${found.state.host ? ` on ${found.state.host}` : ""}`],
      seen.version && ["Version", seen.version],
      mark && ["Started", `${mark.cause}${seen.via ? `, ${seen.via}` : ""}${seen.start_latency_ms === null ? "" : `, ready after ${took(seen.start_latency_ms)}`}`],
      lease && ["Starting", `${lease.cause}, epoch ${lease.epoch}, the lease ends in ${span(lease.ends_in_s)}`],
      found.command_id && ["Last command", `${found.command_id}${found.issued_at ? `, ${full(found.issued_at)}` : ""}`],
      seen.restarts !== null && ["Restarts", count(seen.restarts)],
      seen.failures > 0 && ["Failures", `${count(seen.failures)} in a row`],
      seen.reason && ["Last reason", seen.reason],
      ["Next", nextWords(next)],
    ]));
  put(line.body, found.history.length ? h("ol", { class: "timeline" }, found.history.flatMap(entry)) : nothing("Nothing has happened yet."));
  state.hidden = !Object.keys(found.state).length;
  put(state.body, h("pre", { tabindex: 0, "aria-label": "What the worker last published" }, JSON.stringify(found.state, null, 2)));
}

function nextWords(next) {
  const due = next.by ? `, by ${clock(next.by)}` : "";
  return next.action === "none" ? `nothing: ${next.why}` : `${next.action}: ${next.why}${due}`;
}

function entry(step, at, all) {
  const newEpoch = step.epoch && step.epoch !== all[at - 1]?.epoch;
  return [
    newEpoch ? h("li", { class: "epoch" }, `epoch ${step.epoch}`) : null,
    h("li", { class: TONES[step.event] || "" },
      h("time", { datetime: step.at, title: full(step.at) }, clock(step.at)),
      h("div", {}, h("strong", {}, step.event), step.detail ? h("span", { class: "detail" }, ` ${step.detail}`) : null,
        step.why ? h("div", { class: "quiet" }, step.why) : null)),
  ].filter(Boolean);
}

function showOrders(found) {
  orders.hidden = !found.orders.length;
  put(orders.body, h("table", { class: "small" },
    h("thead", {}, h("tr", {}, ["Order", "Status", "Filled"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, found.orders.map((order) => h("tr", {},
      h("td", { title: order.order_id }, `${order.side} ${order.qty} ${order.symbol}`),
      h("td", {}, order.status, order.differs ? h("div", { class: "quiet" }, `its worker had said ${order.differs}`) : null), h("td", {}, String(order.filled_qty)))))));
}

function showLog(found) {
  put(log.aside, h("span", { class: "quiet" }, found.task_id));
  if (!found.lines.length) {
    put(log.body, nothing("This task has written nothing yet."));
    return;
  }
  const old = log.body.querySelector("pre");
  const text = found.lines.map(readable).join("\n");
  if (old?.textContent === text) return;
  const stays = old && old.scrollTop + old.clientHeight < old.scrollHeight - 4; // somebody reads further up
  const pre = h("pre", { class: "log", tabindex: 0, "aria-label": `The last ${LINES} lines of its output` }, text);
  const top = old?.scrollTop;
  put(log.body, pre);
  pre.scrollTop = stays ? top : pre.scrollHeight;
}

/** Our own lines are JSON with a time and a message; everything else is shown as it was written. */
function readable(text) {
  try {
    const said = JSON.parse(text);
    if (typeof said.message === "string" && said.at) return `${clock(said.at * 1000)}  ${said.message}`;
    if (said._aws && said.StartLatency !== undefined) return `${clock(said._aws.Timestamp)}  ready (${said.via})`;
  } catch {
    // not JSON
  }
  return text;
}
