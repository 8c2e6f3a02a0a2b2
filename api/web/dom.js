// Elements and words. Everything that comes from the API is written as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const $ = (id) => document.getElementById(id);
export const h = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
export const s = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

export function say(element, text) {
  // Only a change is written: screen readers speak an alert again each time it is.
  if (element.textContent !== text) element.textContent = text;
  element.hidden = !text;
}

export function put(element, ...children) {
  element.replaceChildren(...children.flat().filter(Boolean));
}

/** One child per item, kept over reloads by key, so that the keyboard keeps its place. */
export function keyed(parent, items, keyOf, make, update) {
  const kept = (parent.kept ||= new Map());
  const wanted = new Set(items.map(keyOf));
  for (const [key, child] of kept) {
    if (wanted.has(key)) continue;
    child.remove();
    kept.delete(key);
  }
  items.forEach((item, at) => {
    const key = keyOf(item);
    const child = kept.get(key) || make(item);
    kept.set(key, child);
    update?.(child, item);
    if (parent.children[at] !== child) parent.insertBefore(child, parent.children[at] || null);
  });
}

export function forget(parent) {
  parent.kept?.clear();
  parent.replaceChildren();
}

const number = new Intl.NumberFormat("en");
export const count = (value) => number.format(value);
export const words = (text) => text.replaceAll("_", " ");

export function plural(value, one, many = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : many}`;
}

export function took(ms) {
  if (ms === null || ms === undefined) return "";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 100_000) return `${(ms / 1000).toFixed(1)} s`;
  return span(ms / 1000);
}

export function span(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 90) return `${whole} s`;
  if (whole < 5400) return `${Math.round(whole / 60)} min`;
  return whole < 129_600 ? `${Math.round(whole / 3600)} h` : `${Math.round(whole / 86_400)} d`;
}

export const ago = (moment) => span((Date.now() - new Date(moment)) / 1000);
export const clock = (moment) => new Date(moment).toLocaleTimeString("en-GB");
export const full = (moment) => new Date(moment).toLocaleString("en-GB");

/** The value below which this share of the sorted numbers lies. */
export function quantile(sorted, share) {
  return sorted.length ? sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] : null;
}

export const badge = (phase) => h("span", { class: `badge ${phase}` }, words(phase));

export function facts(pairs, classes = "") {
  return h("dl", { class: `facts ${classes}` }, pairs.filter(Boolean).map(([name, value]) => {
    return h("div", {}, h("dt", {}, name), h("dd", {}, value));
  }));
}

/** A card with a heading; its body is what the view fills. */
export function card(id, title, more = {}) {
  const body = h("div", { class: "body" });
  const aside = h("div", { class: "aside" });
  const made = h("section", { id, class: `card ${more.class || ""}`, "aria-labelledby": `${id}-title` },
    h("div", { class: "head" }, h("h2", { id: `${id}-title` }, title), aside), body);
  return Object.assign(made, { body, aside });
}

export const nothing = (text) => h("p", { class: "nothing" }, text);
