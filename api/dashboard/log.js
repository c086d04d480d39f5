// The order itself, page by page.

import { byId, count, decoded, h, say, set } from "./dom.js";
import { ask } from "./door.js";

const PAGE = 50;

export class Log {
  constructor() {
    this.nameOf = (site) => site;
    this.newest = 0;
    this.items = [];
    this.following = false;
    this.busy = false;
    byId("log-newest").addEventListener("click", () => this._read(this.newest - PAGE));
    byId("log-older").addEventListener("click", () => this._read((this.items.at(0)?.slot ?? this.newest) - 1 - PAGE));
    byId("log-newer").addEventListener("click", () => this._read(this.items.at(-1)?.slot ?? this.newest - PAGE));
    byId("log-follow").addEventListener("click", () => {
      this.following = !this.following;
      set(byId("log-follow"), "aria-pressed", this.following);
      if (this.following) this._read(this.newest - PAGE);
    });
    byId("log").replaceChildren(row("", "", "Press Newest to read it.", "", ""));
  }

  /** Slots up to this one are executed. */
  reached(slot) {
    const moved = slot > this.newest;
    this.newest = slot;
    if (this.following && moved) this._read(slot - PAGE);
  }

  async _read(since) {
    if (this.busy) return;
    this.busy = true;
    try {
      const answer = await ask(`/v1/log?since=${Math.max(since, 0)}&limit=${PAGE}`);
      const page = await answer.json();
      if (page.items.length) this.items = page.items;
      this._draw(page.items.length > 0);
    } catch (error) {
      this.following = false;
      set(byId("log-follow"), "aria-pressed", false);
      say(byId("log-words"), error.status ? error.message : "the gateway cannot be reached");
    } finally {
      this.busy = false;
    }
  }

  _draw(found) {
    const [first, last] = [this.items.at(0)?.slot, this.items.at(-1)?.slot];
    const words = first === undefined ? "nothing is there" : `slots ${count(first)} to ${count(last)}, newest first`;
    say(byId("log-words"), found ? words : `${words}; there is nothing newer`);
    const rows = [...this.items].reverse().map((each) => row(count(each.slot), each.kind, wordsOf(each), named(each.source, this.nameOf), count(each.size)));
    byId("log").replaceChildren(...rows);
  }
}

/** A site by its name; of a call of a client, also whose it is. */
function named(source, nameOf) {
  const [site, ...rest] = source.split(" ");
  return [nameOf(site), ...rest].join(" ");
}

function row(slot, kind, what, from, bytes) {
  return h(
    "tr",
    {},
    h("td", { class: "number" }, slot),
    h("td", {}, kind ? h("span", { class: "kind", "data-kind": kind }, kind) : ""),
    h("td", { class: "text" }, what),
    h("td", {}, from),
    h("td", { class: "number" }, bytes),
  );
}

function wordsOf(item) {
  const parts = [];
  if (item.method) parts.push(`${item.method}(${Object.entries(item.arguments ?? {}).map(argument).filter(Boolean).join(", ")})`);
  if (item.words) parts.push(item.words);
  return parts.join(" ").slice(0, 300);
}

function argument([name, value]) {
  if (value === null) return "";
  if (typeof value === "string") {
    const text = decoded(value);
    return `${name}: ${text === null ? value : JSON.stringify(text)}`;
  }
  return `${name}: ${JSON.stringify(value)}`;
}
