// The queues, and a browser for what they gave up.

import { change } from "./api.js";
import { ask } from "./confirm.js";
import { ago, card, count, full, h, keyed, nothing, plural, put } from "./dom.js";
import { address, worker as workerAddress } from "./place.js";

let list, letters, chosen, changes;

export const queues = {
  title: () => "Queues",

  make(here, me) {
    changes = me.may.includes("fleet:change");
    chosen = here.name;
    list = card("list", "Queues", { class: "flat" });
    letters = card("letters", `Given up by ${chosen}`, { class: "flat" });
    letters.hidden = !chosen;
    return [h("h1", { class: "hidden" }, "Queues"), list, letters];
  },

  parts: () => [
    { id: "list", path: "/v1/queues", show: showList },
    chosen && { id: "letters", path: `/v1/queues/${encodeURIComponent(chosen)}/dead-letters?limit=100`, show: showLetters, slow: true,
      missing: (failure) => put(letters.body, nothing(failure.message)) },
  ].filter(Boolean),
};

function showList(found) {
  if (!found.length) {
    put(list.body, nothing("This deployment has no queues."));
    return;
  }
  put(list.body, h("div", { class: "scroll" }, h("table", {},
    h("thead", {}, h("tr", {}, ["Queue", "Waiting", "In flight", "Given up", ""].map((name, at) =>
      name ? h("th", { scope: "col", class: at ? "number" : null }, name) : h("td", {})))),
    h("tbody", {}, found.map((queue) => h("tr", { class: queue.name === chosen ? "chosen" : null },
      h("th", { scope: "row" }, queue.name),
      h("td", { class: "number" }, count(queue.depth)),
      h("td", { class: "number" }, count(queue.in_flight)),
      h("td", { class: `number ${queue.dead_letter ? "dead" : ""}` }, queue.dead_letter === null ? "keeps none" : count(queue.dead_letter)),
      h("td", { class: "number" }, queue.dead_letter === null ? "" : h("a", { href: address("queues", queue.name), "aria-label": `Look at what ${queue.name} gave up` }, "Look"))))))));
}

function showLetters(found) {
  if (!letters.aside.firstChild && changes) {
    letters.aside.append(h("button", { type: "button", id: "redrive-all", onclick: () => redriveAll() }, "Send all round again…"));
  }
  const all = letters.aside.querySelector("button");
  if (all) all.disabled = !found.length;
  if (!found.length) {
    letters.body.kept?.clear();
    put(letters.body, nothing("Nothing was given up. What cannot work, or failed too often, is kept here for 14 days."));
    return;
  }
  letters.body.querySelector(".nothing")?.remove();
  keyed(letters.body, found, (letter) => letter.message_id, makeLetter);
}

function makeLetter(letter) {
  return h("article", { class: "letter" },
    h("div", { class: "row" },
      h("strong", {}, letter.group ? h("a", { href: workerAddress(letter.group) }, letter.group) : letter.message_id),
      h("span", { class: "quiet", title: full(letter.sent_at) }, `sent ${ago(letter.sent_at)} ago`),
      h("span", { class: "push" }),
      changes ? h("button", { type: "button", class: "tiny", "aria-label": `Send message ${letter.message_id} round again`, onclick: () => redriveOne(letter) }, "send again…") : null),
    h("p", { class: "why" }, letter.reason || "It failed too often; its worker's time line says why."),
    h("pre", { tabindex: 0, "aria-label": "Message body" }, letter.body.slice(0, 2000)));
}

function redriveOne(letter) {
  ask({
    question: "Send this message round again?",
    body: h("p", {}, "It goes back to its queue and keeps its first moment: if a newer command has overtaken it, it stays overtaken."),
    label: "Send again",
    go: async (reason) => {
      await change("POST", `/v1/queues/${encodeURIComponent(chosen)}/dead-letters/${letter.message_id}/redrive`, { reason });
      return "The message was sent round again.";
    },
  });
}

function redriveAll() {
  ask({
    question: `Send all messages of ${chosen} round again?`,
    body: h("p", {}, "Each goes back to its queue and keeps its first moment. What still cannot work comes back here with its reason."),
    label: "Send all again",
    go: async (reason) => {
      const done = await change("POST", `/v1/queues/${encodeURIComponent(chosen)}/dead-letters/redrive`, { reason });
      return `${plural(done.redriven, "message")} sent round again.`;
    },
  });
}
