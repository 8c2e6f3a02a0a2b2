// Drawings. Each says in words what it shows; colour never says it alone.

import { clock, count, h, plural, quantile, s, took } from "./dom.js";

const KINDS = ["warm", "cold", "repair"];
const LEFT = 46;
const BOTTOM = 24;
const TOP = 8;

const shapes = {
  warm: (x, y) => s("circle", { cx: x, cy: y, r: 3.4 }),
  cold: (x, y) => s("rect", { x: x - 3.2, y: y - 3.2, width: 6.4, height: 6.4 }),
  repair: (x, y) => s("path", { d: `M${x} ${y - 4.6}L${x + 4.4} ${y + 3.4}H${x - 4.4}Z` }),
};

/** When each start became ready (across) and how long it took (up, logarithmic). */
export function latencies(starts, width) {
  const height = width > 420 ? 340 : 230;
  const times = starts.map((start) => new Date(start.at).getTime());
  const until = Math.max(Date.now(), ...times);
  const since = until - 1.04 * Math.max(30_000, until - Math.min(...times));
  const most = Math.max(1000, ...starts.map((start) => start.latency_ms));
  const low = Math.floor(Math.log10(Math.max(1, Math.min(100, ...starts.map((start) => start.latency_ms)))));
  const high = Math.max(low + 1, Math.ceil(Math.log10(most)));
  const x = (time) => LEFT + ((time - since) / (until - since)) * (width - LEFT - 12);
  const y = (ms) => TOP + (1 - (Math.log10(Math.max(1, ms)) - low) / (high - low)) * (height - TOP - BOTTOM);
  const lines = [];
  for (let power = low; power <= high; power += 1) {
    const at = y(10 ** power);
    lines.push(s("line", { class: "grid", x1: LEFT, x2: width - 8, y1: at, y2: at }));
    lines.push(s("text", { class: "axis", x: LEFT - 7, y: at + 4, "text-anchor": "end" }, took(10 ** power).replace(".0", "")));
  }
  for (const share of width > 420 ? [0, 1 / 3, 2 / 3, 1] : [0, 1]) {
    const time = since + share * (until - since);
    const anchor = share === 0 ? "start" : share === 1 ? "end" : "middle";
    lines.push(s("text", { class: "axis", x: x(time), y: height - 5, "text-anchor": anchor }, clock(time)));
  }
  const points = starts.map((start, at) => {
    const point = shapes[start.kind](x(times[at]), y(start.latency_ms));
    point.setAttribute("class", start.kind);
    point.append(s("title", {}, `${start.user_id}: ${start.kind}, ${took(start.latency_ms)}, ${clock(start.at)}`));
    return point;
  });
  const told = KINDS.map((kind) => summary(starts, kind)).filter((each) => each.starts);
  const label = told.map((each) => `${each.kind}: ${plural(each.starts, "start")}, median ${took(each.half)}, 95 of 100 within ${took(each.most)}`);
  return [
    s("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img", "aria-label": `Start times. ${label.join("; ")}` }, lines, points),
    h("ul", { class: "legend" }, told.map((each) => h("li", {},
      s("svg", { viewBox: "0 0 12 12", width: 12, height: 12, "aria-hidden": "true", class: each.kind }, shapes[each.kind](6, 6)),
      h("strong", {}, each.kind), ` ${took(each.half)}`, h("span", { class: "quiet" }, ` median · ${took(each.most)} p95 · ${count(each.starts)}`)))),
  ];
}

function summary(starts, kind) {
  const sorted = starts.filter((start) => start.kind === kind).map((start) => start.latency_ms).sort((a, b) => a - b);
  return { kind, starts: sorted.length, half: quantile(sorted, 0.5), most: quantile(sorted, 0.95) };
}

/** One bar per heal, oldest first. */
export function heals(starts) {
  const healed = starts.filter((start) => start.heal_ms !== null).slice(0, 40).reverse();
  const sorted = healed.map((start) => start.heal_ms).sort((a, b) => a - b);
  const [half, worst] = [quantile(sorted, 0.5), sorted.at(-1)];
  const wide = 300 / Math.max(20, healed.length);
  const bars = healed.map((start, at) => {
    const high = Math.max(2, (start.heal_ms / worst) * 70);
    return s("rect", { class: "repair", x: at * wide + 1, y: 74 - high, width: wide - 2, height: high, rx: 1.5 },
      s("title", {}, `${start.user_id}: healed in ${took(start.heal_ms)}, ${clock(start.at)}`));
  });
  return [
    h("p", { class: "figure" }, h("strong", {}, took(half)), h("span", { class: "quiet" }, ` median · ${took(worst)} worst · last ${healed.length}`)),
    s("svg", { viewBox: "0 0 300 76", class: "chart short", role: "img", "aria-label": `The last ${plural(healed.length, "heal")}: median ${took(half)}, worst ${took(worst)}` },
      s("line", { class: "grid", x1: 0, x2: 300, y1: 75, y2: 75 }), bars),
    h("p", { class: "quiet" }, "From the loss being seen to ready again."),
  ];
}

/** Parts of a whole in one bar; `mark` is where it should end. */
export function bar(label, parts, { mark = null, whole = null } = {}) {
  const sum = parts.reduce((total, part) => total + part.value, 0);
  const most = Math.max(1, whole ?? 0, sum, mark ?? 0);
  let at = 0;
  const drawn = parts.filter((part) => part.value).map((part) => {
    const piece = s("rect", { class: part.class, x: `${(at / most) * 100}%`, y: 0, width: `${(part.value / most) * 100}%`, height: 14 });
    at += part.value;
    return piece;
  });
  const told = parts.map((part) => `${part.name} ${part.value}`).join(", ") + (mark === null ? "" : `, target ${mark}`);
  return s("svg", { class: "bar", width: "100%", height: 22, role: "img", "aria-label": `${label}: ${told}` },
    s("svg", { y: 4, height: 14, width: "100%" }, s("rect", { class: "empty", width: "100%", height: 14 }), drawn),
    mark === null ? null : s("rect", { class: "target", x: `${Math.min(99.4, (mark / most) * 100)}%`, y: 0, width: 2.5, height: 22 }));
}

/** How old the last beat is within the life of a mark: renew at 10 s, stop acting at 25 s, gone at 30 s. */
export function beat(age) {
  const at = (seconds) => `${(Math.min(30, seconds) / 30) * 100}%`;
  const state = age < 12 ? "good" : age < 25 ? "busy" : "bad";
  return s("svg", { class: "bar beats-bar", width: "100%", height: 34, role: "img", "aria-label": `Last beat ${Math.round(age)} s ago; the mark lasts 30 s` },
    s("rect", { class: "empty", y: 2, width: "100%", height: 10 }),
    s("rect", { class: state, y: 2, width: at(age), height: 10 }),
    [[10, "renew"], [25, "stop acting"]].map(([seconds, word]) => [
      s("line", { class: "tick", x1: at(seconds), x2: at(seconds), y1: 0, y2: 15 }),
      s("text", { class: "axis", x: at(seconds), y: 29, "text-anchor": "middle" }, `${seconds} s ${word}`),
    ]).flat());
}
