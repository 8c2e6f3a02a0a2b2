// What is looked at, as the address says it: #/view/name?filter. Every state of the page has an address.

export function place() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [view, ...rest] = path.split("/");
  let name = rest.join("/");
  try {
    name = decodeURIComponent(name);
  } catch {
    // an address typed by hand: looked for as it stands
  }
  return { view: view || "fleet", name, query: Object.fromEntries(new URLSearchParams(query)) };
}

export function address(view, name = "", query = {}) {
  const kept = new URLSearchParams(Object.entries(query).filter(([, value]) => value));
  const path = view === "fleet" ? "" : view + (name ? `/${encodeURIComponent(name)}` : "");
  return `#/${path}${kept.size ? `?${kept}` : ""}`;
}

/** Another filter, order or page of the same view. `trail` remembers the pages before, for the way back. */
export function look(changes, { replace = false, trail = [] } = {}) {
  const here = place();
  const there = address(here.view, here.name, { ...here.query, cursor: "", ...changes });
  history[replace ? "replaceState" : "pushState"]({ trail }, "", there);
  window.dispatchEvent(new Event("moved"));
}

export const trail = () => history.state?.trail || [];
export const worker = (user) => address("worker", user);
