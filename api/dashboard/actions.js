// Actions: those in flight and the latest that are decided, with each site's operations, vote and end.

import { byId, count, h, keyed, say, set } from "./dom.js";
import { follow } from "./stream.js";

const BACK = 400; // slots before now, to begin with
const KEPT_MAX = 200; // actions, of each kind
const SHOWN_MAX = 30;
const SILENCE_MS = 25_000; // a stream says every ten seconds that it lives

const isDecided = (each) => each.state === "committed" || each.state === "aborted";
const slotOf = (each) => each.decided ?? each.requested ?? each.opened ?? 0;

export class Actions {
  constructor() {
    this.known = new Map();
    this.state = "";
    this.stream = null;
    this.drawing = false;
  }

  begin() {
    this.stream ??= follow(`/v1/actions/events?back=${BACK}`, {
      silence_ms: SILENCE_MS,
      onState: (state, words) => this._state(state, words),
      onEvent: (kind, data) => this._event(kind, data),
    });
  }

  _state(state, words) {
    this.state = { live: "", lost: "reconnecting; nothing will be missed", refused: words }[state];
    this._draw();
  }

  _event(kind, data) {
    if (kind === "error" && data.code === "compacted") this.known.clear(); // the group has begun anew
    if (kind !== "action") return;
    this.known.delete(data.id);
    this.known.set(data.id, data); // the latest last
    this._draw();
  }

  /** What is too much goes, the one that has not changed for longest first. */
  _bound(decided) {
    const some = [...this.known.values()].filter((each) => isDecided(each) === decided);
    for (const each of some.slice(0, Math.max(some.length - KEPT_MAX, 0))) this.known.delete(each.id);
    return some.slice(-KEPT_MAX).sort((a, b) => slotOf(b) - slotOf(a));
  }

  _draw() {
    if (this.drawing) return;
    this.drawing = true;
    requestAnimationFrame(() => {
      this.drawing = false;
      const flight = this._bound(false);
      const decided = this._bound(true);
      const shown = [...flight.slice(0, SHOWN_MAX), ...decided.slice(0, SHOWN_MAX)];
      keyed(byId("actions"), shown, (each) => each.id, make, update);
      byId("actions-none").hidden = shown.length > 0;
      const more = flight.length > SHOWN_MAX ? `, ${SHOWN_MAX} of them shown` : "";
      const words = `${count(flight.length)} in flight${more}`;
      say(byId("actions-words"), this.state || words);
    });
  }
}

function make() {
  return h(
    "li",
    { class: "action" },
    h("div", { class: "line" }, h("h3"), h("span", { class: "pill" }), h("span", { class: "hint" })),
    h("p", { class: "why" }),
    h("ul", { class: "parts" }),
  );
}

function update(element, each) {
  const [line, why, parts] = element.children;
  set(element, "data-state", each.state);
  set(element, "data-id", each.id);
  say(line.children[0], each.id);
  say(line.children[1], each.state);
  say(line.children[2], whenOf(each));
  say(why, whyOf(each));
  why.hidden = !why.textContent;
  keyed(parts, each.sites.map((site) => partOf(each, site)), (part) => part.site, makePart, updatePart);
}

function whenOf(each) {
  const slots = [["opened", each.opened], ["requested", each.requested], ["decided", each.decided]];
  return slots.filter(([, slot]) => slot !== null).map(([words, slot]) => `${words} at ${count(slot)}`).join(" · ");
}

function whyOf(each) {
  if (each.state === "aborted") return each.reason;
  if (each.state === "waiting" && each.waits_for.length) return `waits for ${each.waits_for.slice(0, 5).join(", ")}`;
  return each.depends.length ? `depends on ${each.depends.join(", ")}` : "";
}

function partOf(each, site) {
  const calls = each.operations.filter((operation) => operation.site === site).map(callOf);
  return {
    site,
    calls: calls.slice(0, 5).join("\n") + (calls.length > 5 ? `\nand ${calls.length - 5} more` : ""),
    vote: each.votes.find((vote) => vote.site === site),
    end: each.finished.find((finish) => finish.site === site),
    state: each.state,
  };
}

/** `values`: a list, or text in a site's own encoding. */
const callOf = ({ operation, arguments: values }) =>
  `${operation}(${[values].flat().map((value) => JSON.stringify(value)).join(", ")})`.slice(0, 200);

function makePart() {
  return h("li", { class: "part" }, h("strong"), h("span", { class: "vote" }), h("code"), h("span", { class: "hint" }));
}

function updatePart(element, { site, calls, vote, end, state }) {
  const [name, mark, code, last] = element.children;
  set(element, "data-site", site);
  say(name, site);
  const unvoted = { open: "not asked yet", waiting: "not asked yet", voting: "votes" }[state] ?? "no vote";
  set(mark, "data-vote", vote ? (vote.yes ? "yes" : "no") : "none");
  say(mark, vote ? `${vote.yes ? "✓ yes" : "✗ no"} at ${count(vote.slot)}` : unvoted);
  set(mark, "title", vote?.reason || null);
  say(code, calls);
  say(last, state !== "committed" ? "" : !end ? "to be applied" : end.error ? `not applied: ${end.error}` : `applied at ${count(end.slot)}`);
}

export function showSites(sites, nameOf) {
  keyed(
    byId("sites"),
    sites,
    (each) => each.name,
    () => h("tr", {}, h("td", { class: "wrap" }), h("td", {}, h("span", { class: "kind" })), h("td", { class: "wrap" }), h("td", { class: "number" }), h("td", { class: "number" })),
    (element, each) => {
      const [name, here, where, since, unfinished] = element.children;
      set(element, "data-here", each.here);
      say(name, each.name);
      say(here.firstChild, each.here ? "here" : "away");
      say(where, each.here ? nameOf(each.address) : "–");
      say(since, count(each.incarnation));
      say(unfinished, count(each.unfinished));
    },
  );
  byId("sites-none").hidden = sites.length > 0;
}
