// Makes elements and words numbers. Text reaches the page as text nodes alone; knows no endpoint.

const COUNT = new Intl.NumberFormat("en");
const UNITS = ["B", "kB", "MB", "GB", "TB"];

export const at = (id) => document.getElementById(id);

// Attributes by name; a function listens to the event of that name. Children are nodes or texts.
export function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export const count = (number) => COUNT.format(number);

export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

export const percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;

export function size(bytes) {
  let unit = 0;
  while (bytes >= 1000 && unit < UNITS.length - 1) {
    bytes /= 1000;
    unit += 1;
  }
  return `${unit && bytes < 100 ? bytes.toFixed(1) : Math.round(bytes)} ${UNITS[unit]}`;
}

export function duration(ms) {
  if (ms >= 10_000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms >= 1000) return `${(ms / 1000).toFixed(2)} s`;
  return `${ms < 100 ? ms.toFixed(1) : Math.round(ms)} ms`;
}

export function when(seconds) {
  const date = new Date(1000 * seconds);
  const two = (number) => String(number).padStart(2, "0");
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}`;
}

// A bar of parts [{name, value, kind, share?}], as long as `share` of its place. A reader hears `words`. Of a part, its own
// `share` is what was recomputed, from its foot up.
export function bar(parts, words, share = 1) {
  const filled = make("div", { class: "filled" });
  for (const { name, value, kind, share: inside } of parts.filter((part) => part.value > 0)) {
    const part = make("span", { class: kind, title: name }, inside ? make("span", { class: "recomputed" }) : null);
    part.style.flexGrow = String(value);
    if (inside) part.firstChild.style.height = `${100 * inside}%`;
    filled.append(part);
  }
  filled.style.width = `${100 * share}%`;
  return make("div", { class: "track", role: "img", "aria-label": words }, filled);
}

// What the colours of a bar mean: [{name, told, kind}].
export function legend(entries) {
  const items = entries.map(({ name, told, kind }) =>
    make("li", {}, make("span", { class: `swatch ${kind}` }), `${name} `, make("b", {}, told)));
  return make("ul", { class: "legend" }, ...items);
}

// Terms with their values: [[term, value, hint?]].
export function figures(entries) {
  const told = entries.map(([term, value, hint]) =>
    make("div", {}, make("dt", {}, term), make("dd", {}, value, " ", make("small", {}, hint || "\u00a0"))));
  return make("dl", { class: "figures" }, ...told);
}

// What went wrong, with the request's id, so that it can be found in the log.
export function problem(error) {
  const about = [error.status ? `status ${error.status}` : "", error.requestId ? `request ${error.requestId}` : ""];
  const fields = (error.fields ?? []).filter(({ message }) => !error.message.includes(message));
  return make("div", { class: "problem" },
    make("p", {}, error.message),
    ...fields.map(({ field, message }) => make("p", {}, `${field}: ${message}`)),
    make("p", { class: "hint" }, about.filter(Boolean).join(" · ")));
}
