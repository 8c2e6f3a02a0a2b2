// The one dialog: what will happen, to how many, why. Nothing is changed without it.

import { ApiError, change, newKey } from "./api.js";
import { $, h, plural, say } from "./dom.js";

const NOTICE_MS = 10_000;
const CONSEQUENCES = {
  start: "A worker is started for each and kept alive from then on.",
  stop: "The worker finishes what it does and ends. It stays stopped until somebody starts it.",
  restart: "The worker finishes what it does and ends; a new one takes its place at once.",
};
let noticed = 0;

export function notice(text) {
  $("notice").textContent = text;
  clearTimeout(noticed);
  noticed = setTimeout(() => ($("notice").textContent = ""), NOTICE_MS);
}

/** Ask, and `go(reason, key)` when the answer is yes. It returns what to tell; an error is shown and may be retried. */
export function ask({ question, body, label, needsReason = false, needsUser = false, danger = false, go }) {
  const dialog = $("confirm");
  const key = newKey();
  const show = (texts) => {
    $("question").textContent = texts.question;
    $("consequence").replaceChildren(...[texts.body].flat());
    $("go").textContent = texts.label;
  };
  show({ question, body, label });
  say($("refusal"), "");
  $("reason").value = "";
  $("reason").required = needsReason;
  $("subject").value = "";
  $("subject").required = needsUser;
  $("subject").disabled = $("subject").hidden = $("subject-label").hidden = !needsUser;
  $("reason-label").textContent = needsReason ? "Reason (goes into the audit log)" : "Reason (optional, goes into the audit log)";
  $("go").classList.toggle("danger", danger);
  $("go").disabled = false;
  dialog.querySelector("form").onsubmit = async (event) => {
    event.preventDefault();
    $("go").disabled = true;
    say($("refusal"), "");
    try {
      notice(await go($("reason").value.trim(), key, show));
      dialog.close();
      window.dispatchEvent(new Event("changed"));
    } catch (failure) {
      if (!(failure instanceof ApiError)) throw failure;
      if (failure.status === 401) window.dispatchEvent(new Event("refused"));
      else say($("refusal"), failure.message);
    } finally {
      $("go").disabled = false;
    }
  };
  $("cancel").onclick = () => dialog.close();
  dialog.showModal();
  $(needsUser ? "subject" : "reason").focus();
}

/** A worker for a user that is not in the list: a new one, or one that was stopped and forgotten. */
export function askNew() {
  ask({
    question: "Start a worker",
    body: h("p", {}, CONSEQUENCES.start.replace(" for each", " for this user")),
    label: "Start",
    needsUser: true,
    go: async (reason, key) => {
      const user = $("subject").value.trim();
      await change("POST", `/v1/workers/${encodeURIComponent(user)}/start`, { key, reason, body: {} });
      return `Start of ${user} was accepted; the page follows when it is done.`;
    },
  });
}

export function askOne(user, action) {
  ask({
    question: `${capital(action)} ${user}?`,
    body: h("p", {}, CONSEQUENCES[action].replace(" for each", " for this user")),
    label: capital(action),
    danger: action === "stop",
    go: async (reason, key) => {
      await change("POST", `/v1/workers/${encodeURIComponent(user)}/${action}`, { key, reason, body: {} });
      return `${capital(action)} of ${user} was accepted; the page follows when it is done.`;
    },
  });
}

/** Everybody who matches the filter: `seen` is the server's preview, and the server refuses if it has changed. */
export function askMany(action, filter, seen, preview) {
  const texts = (found) => ({
    question: `${capital(action)} ${plural(found.users, "worker")}?`,
    body: [
      h("p", {}, CONSEQUENCES[action].replace("The worker", "Each worker")),
      h("p", { class: "quiet" }, filter ? `Everybody who matches ${filter}:` : "Everybody, because no filter is set:"),
      h("p", { class: "sample" }, found.some.join(", "), found.users > found.some.length ? ` and ${found.users - found.some.length} more` : ""),
    ],
    label: `${capital(action)} ${plural(found.users, "worker")}`,
  });
  let confirmed = seen;
  let fresh = null; // after a refusal the set is another one: another question, and another key
  ask({
    ...texts(seen),
    needsReason: true,
    danger: action === "stop",
    go: async (reason, key, show) => {
      try {
        const path = `/v1/bulk/${action}${preview.query}`;
        const done = await change("POST", path, { key: fresh || key, reason, body: { selection: confirmed.selection } });
        return `${capital(action)} of ${plural(done.users, "worker")} was accepted; the list follows when it is done.`;
      } catch (failure) {
        if (failure.status === 409) {
          confirmed = await preview.look();
          fresh = newKey();
          show(texts(confirmed));
        }
        throw failure;
      }
    },
  });
}

const capital = (text) => text[0].toUpperCase() + text.slice(1);
