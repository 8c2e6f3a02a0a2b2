// Who changed what, when and why.

import { ago, card, full, h, nothing, put } from "./dom.js";
import { look, place, trail } from "./place.js";

let list, pager, following;

export const audit = {
  title: () => "Audit",

  make() {
    list = card("audit", "Audit", { class: "flat" });
    pager = [
      h("button", { type: "button", onclick: () => look({ cursor: trail().at(-1) }, { trail: trail().slice(0, -1) }) }, "Newer"),
      h("button", { type: "button", onclick: () => look({ cursor: following }, { trail: [...trail(), place().query.cursor || ""] }) }, "Older"),
    ];
    put(list.aside, h("span", { class: "quiet" }, "Every change, newest first"));
    return [h("h1", { class: "hidden" }, "Audit"), list];
  },

  parts(here) {
    const query = new URLSearchParams({ limit: 50 });
    if (here.query.cursor) query.set("cursor", here.query.cursor);
    return [{ id: "audit", path: `/v1/audit?${query}`, show }];
  },
};

function show(found) {
  following = found.next_cursor;
  pager[0].disabled = !place().query.cursor;
  pager[1].disabled = !following;
  put(list.body, found.entries.length ? h("div", { class: "scroll" }, h("table", {},
    h("thead", {}, h("tr", {}, ["When", "Who", "What", "Target", "Reason", "Answer"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, found.entries.map(row)))) : nothing("Nobody has changed anything yet."),
  h("nav", { class: "pages", "aria-label": "Pages of the audit" }, pager));
}

function row(entry) {
  return h("tr", {},
    h("td", { title: full(entry.at), class: "fixed" }, `${ago(entry.at)} ago`),
    h("td", {}, entry.who, entry.who === entry.role ? "" : h("span", { class: "quiet" }, ` ${entry.role}`)),
    h("td", {}, h("strong", {}, entry.action)),
    h("td", { class: "target" }, entry.target),
    h("td", { class: "reason" }, entry.reason || h("span", { class: "quiet" }, "none given")),
    h("td", { class: /^2/.test(entry.result) ? "" : "dead" }, entry.result));
}
