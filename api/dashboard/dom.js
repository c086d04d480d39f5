// Elements and words. Text only ever becomes text: nothing here parses markup.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((each) => each !== null && each !== undefined));
  return element;
}

export const h = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
export const s = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

/** Sets text, and touches nothing if it is the same: screen readers and selections stay where they are. */
export function say(element, words) {
  if (element.textContent !== words) element.textContent = words;
}

export function set(element, name, value) {
  if (value === null) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, String(value));
}

/** One element for each item, by key: those that stay are kept, with their focus. */
export function keyed(parent, items, keyOf, make, update) {
  const there = new Map();
  for (const element of [...parent.children]) {
    if (there.has(element.dataset.key)) element.remove();
    else there.set(element.dataset.key, element);
  }
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let element = there.get(key);
    if (element === undefined) {
      element = make(item);
      element.dataset.key = key;
    }
    there.delete(key);
    if (element === place) place = place.nextElementSibling;
    else parent.insertBefore(element, place);
    update(element, item);
  }
  for (const element of there.values()) element.remove();
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const fine = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });

export const count = (value) => (value === null || value === undefined ? "–" : whole.format(value));
export const figure = (value) => {
  if (value === null || value === undefined) return "–";
  if (value >= 10_000) return `${fine.format(value / 1000)}k`;
  return value >= 100 ? whole.format(value) : fine.format(value);
};
export const milliseconds = (value) => {
  if (value === null || value === undefined) return "–";
  return value >= 1000 ? `${fine.format(value / 1000)} s` : `${fine.format(value)} ms`;
};
export const timeOf = (date) => clock.format(date);

export function size(value) {
  if (value === null || value === undefined) return "–";
  for (const unit of ["B", "KiB", "MiB"]) {
    if (value < 1024) return `${fine.format(value)} ${unit}`;
    value /= 1024;
  }
  return `${fine.format(value)} GiB`;
}

export function duration(seconds) {
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}

/** Base64 of UTF-8 as text; of anything else null. */
export function decoded(base64) {
  try {
    const bytes = Uint8Array.from(atob(base64), (each) => each.charCodeAt(0));
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return null;
  }
}
