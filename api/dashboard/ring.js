// The ring, and the token on its way: positions come from the view, movements from the passes that replicas saw.

import { byId, count, s, say, set } from "./dom.js";

const CENTRE = { x: 220, y: 192 };
const RADIUS = 128;
const OUTSIDE = 28;
const NODE = 31;
const LETTER = 8; // roughly, of a name
const BOW = 44;
const BOW_INWARD = 2;
const ROUND = 150;
const DRAWN_MAX = 9; // passes in a second that an eye can follow
const HOP_MS_MAX = 420;

const still = matchMedia("(prefers-reduced-motion: reduce)");

const add = (a, b, times = 1) => ({ x: a.x + b.x * times, y: a.y + b.y * times });
const minus = (a, b) => ({ x: a.x - b.x, y: a.y - b.y });
const unit = (a) => {
  const length = Math.hypot(a.x, a.y) || 1;
  return { x: a.x / length, y: a.y / length };
};

/** Whether `ring` goes round as `places` do: 1 if so, -1 if the other way round, 0 if neither. */
function turn(places, ring) {
  const order = places.filter((site) => ring.includes(site));
  const first = order.indexOf(ring[0]);
  const turned = [...order.slice(first), ...order.slice(0, first)];
  const same = (others) => others.every((site, index) => site === ring[index]);
  if (same(turned)) return 1;
  return same([turned[0], ...turned.slice(1).reverse()]) ? -1 : 0;
}

/** Ring members in the ring's order; who is outside stands behind whoever is before it in the list. */
function arranged(sites, ring) {
  const found = [...ring];
  for (const [index, site] of sites.entries()) {
    if (!ring.includes(site)) found.splice(index ? found.indexOf(sites[index - 1]) + 1 : 0, 0, site);
  }
  return found;
}

export class Ring {
  constructor() {
    this.order = []; // sites, as they stand
    this.turn = 1;
    this.svg = byId("ring");
    this.edges = s("g", { class: "edges" });
    this.nodes = s("g", { class: "nodes" });
    this.token = s("g", { class: "token", opacity: 0 }, s("circle", { r: 15, class: "glow" }), s("circle", { r: 7, class: "core" }));
    this.middle = s(
      "g",
      { class: "middle", transform: `translate(${CENTRE.x} ${CENTRE.y})` },
      s("text", { class: "big", y: 2 }),
      s("text", { class: "small", y: 24 }),
    );
    const head = s("path", { d: "M0 0 L8 4 L0 8 z" });
    const marker = s("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 6, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, head);
    this.svg.append(s("defs", {}, marker), this.edges, this.middle, this.nodes, this.token);
    this.places = new Map(); // by site
    this.at = ""; // the site where the token is drawn
    this.queue = [];
    this.frame = 0;
  }

  /** Nobody moves without need: while the ring goes round the places as they are, to one side or the other,
   * they stay. `ring` are sites, in their order. */
  _arrange(members, ring) {
    const sites = members.map((member) => member.site);
    const stay = sites.length === this.order.length && sites.every((site) => this.order.includes(site));
    for (const order of [...(stay ? [this.order] : []), sites, arranged(sites, ring)]) {
      this.order = order;
      this.turn = turn(order, ring);
      if (this.turn) break;
    }
    return this.order.map((site) => members.find((member) => member.site === site));
  }

  /** `members` have site, name, label, standing and words; `ring` are sites. */
  show(members, ring, view, holder) {
    this.places = new Map(
      this._arrange(members, ring).map((member, index) => {
        const angle = (2 * Math.PI * index) / members.length - Math.PI / 2;
        const out = { x: Math.cos(angle), y: Math.sin(angle) };
        const at = add(CENTRE, out, RADIUS + (member.inRing ? 0 : OUTSIDE));
        return [member.site, { ...member, at, out }];
      }),
    );
    const heights = [...this.places.values()].map((place) => place.at.y);
    const top = Math.round(Math.min(...heights) - NODE - 42);
    set(this.svg, "viewBox", `0 ${top} 440 ${Math.round(Math.max(...heights) + NODE + 48) - top}`);
    const apart = 2 * RADIUS * Math.sin(Math.PI / Math.max(members.length, 2));
    const longest = Math.max(...members.map((member) => Math.max(member.name.length, member.words.length)));
    this._drawNodes(longest * LETTER < apart - 8);
    this._drawEdges(ring);
    say(this.middle.firstChild, view ? `view ${view}` : "–");
    say(this.middle.lastChild, `${ring.length} of ${members.length} in the ring`);
    if (!this.frame) this._rest(holder);
    const names = (sites) => sites.map((site) => this.places.get(site)?.name).filter(Boolean).join(", ");
    const outside = members.filter((member) => !member.inRing).map((member) => `${member.name} is ${member.words}`);
    const words = [`Ring of ${ring.length}: ${names(ring)}`, ...outside, `the token is at ${names([holder]) || "nobody"}`];
    set(this.svg, "aria-label", words.join("; "));
  }

  /** Where names would lie one over the other there are numbers alone; the list has both. */
  _drawNodes(named) {
    const there = new Map([...this.nodes.children].map((each) => [each.dataset.site, each]));
    for (const [site, place] of this.places) {
      let node = there.get(site);
      if (!node) {
        node = s(
          "g",
          { class: "node", "data-site": site },
          s("circle", { r: NODE + 7, class: "halo" }),
          s("circle", { r: NODE, class: "disc" }),
          s("text", { class: "label", y: 7 }),
          s("text", { class: "name" }),
          s("text", { class: "standing" }),
          s("g", { class: "badge" }, s("circle", { r: 10 }), s("path", { d: "M-4.5 0 L-1 3.5 L5 -3.5" })),
        );
        this.nodes.append(node);
      }
      there.delete(site);
      const [, , label, name, standing, badge] = node.children;
      node.style.transform = `translate(${place.at.x}px, ${place.at.y}px)`;
      set(node, "data-standing", place.standing);
      set(node, "data-address", place.address);
      set(node, "data-ring", place.inRing);
      say(label, place.label);
      say(name, named ? place.name : "");
      say(standing, named ? place.words : "");
      const below = place.out.y > -0.5;
      set(name, "y", below ? NODE + 24 : -NODE - 25);
      set(standing, "y", below ? NODE + 40 : -NODE - 10);
      set(badge, "transform", `translate(${NODE * 0.74} ${-NODE * 0.74})`);
      set(badge, "opacity", place.handler ? 1 : 0);
    }
    for (const gone of there.values()) gone.remove();
  }

  _drawEdges(ring) {
    const pairs = ring.length < 2 ? [] : ring.map((site, index) => [site, ring[(index + 1) % ring.length]]);
    const wanted = new Map(pairs.map(([from, to]) => [`${from}>${to}`, this._curve(from, to)]));
    for (const edge of [...this.edges.children]) {
      if (!wanted.has(edge.dataset.pass)) edge.remove();
    }
    for (const [pass, curve] of wanted) {
      let edge = this._edge(pass);
      if (!edge) {
        edge = s("path", { class: "edge", "data-pass": pass, "marker-end": "url(#arrow)" });
        this.edges.append(edge);
      }
      set(edge, "d", curve);
    }
  }

  _edge(pass) {
    return [...this.edges.children].find((each) => each.dataset.pass === pass);
  }

  /** Bowed outward; where two go both ways, apart. */
  _curve(from, to) {
    const [a, b] = [this.places.get(from)?.at, this.places.get(to)?.at];
    if (!a || !b) return "";
    const way = unit(minus(b, a));
    const middle = { x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 };
    const side = { x: way.y * this.turn, y: -way.x * this.turn };
    const off = minus(middle, CENTRE);
    const inward = side.x * off.x + side.y * off.y < 0;
    const bow = Math.hypot(off.x, off.y) < 40 ? ROUND : inward ? BOW_INWARD : BOW; // the middle has words
    const bend = add(middle, side, bow);
    const start = add(a, unit(minus(bend, a)), NODE + 4);
    const end = add(b, unit(minus(bend, b)), NODE + 9);
    const of = ({ x, y }) => `${x.toFixed(1)} ${y.toFixed(1)}`;
    return `M${of(start)} Q${of(bend)} ${of(end)}`;
  }

  // -- the token -----------------------------------------------------------------------------------

  /** Passes of a second, oldest first. They are drawn over the next one, the last of them if there are many. */
  move(token, rate, holder) {
    const drawn = token.path.slice(-DRAWN_MAX);
    if (still.matches || document.hidden || !drawn.length) {
      this.queue = [];
      this._rest(drawn.at(-1)?.target ?? holder);
    } else {
      const hop = Math.min(950 / drawn.length, HOP_MS_MAX);
      this.queue = drawn.map((each) => ({ ...each, hop }));
      if (!this.frame) this._next();
    }
    say(byId("token-sample"), sampleWords(token, drawn.length));
    const name = this.places.get(holder)?.name ?? "nobody";
    const times = rate < 1.5 ? "once" : `${count(rate)} times`;
    say(byId("token-words"), token.passes ? `the token went on ${times} in a second` : `the token rests at ${name}`);
  }

  _rest(site) {
    const place = this.places.get(site);
    this.at = place ? site : "";
    for (const node of this.nodes.children) set(node, "data-token", node.dataset.site === this.at);
    set(this.token, "opacity", 0);
    set(this.svg, "data-token", place?.name ?? "");
  }

  _next() {
    const pass = this.queue.shift();
    if (!pass) {
      this.frame = 0;
      return;
    }
    const edge = this._edge(`${pass.source}>${pass.target}`);
    this._rest(pass.source);
    if (!edge || !edge.getAttribute("d")) {
      this._rest(pass.target); // the ring has changed meanwhile
      this.frame = requestAnimationFrame(() => this._next());
      return;
    }
    const length = edge.getTotalLength();
    let began = 0;
    for (const node of this.nodes.children) set(node, "data-token", false);
    set(this.token, "opacity", 1);
    set(edge, "data-busy", true);
    const step = (now) => {
      began ||= now;
      const done = Math.min((now - began) / pass.hop, 1);
      const eased = done < 0.5 ? 2 * done * done : 1 - 2 * (1 - done) * (1 - done);
      const { x, y } = edge.getPointAtLength(length * eased);
      set(this.token, "transform", `translate(${x.toFixed(1)} ${y.toFixed(1)})`);
      if (done < 1) {
        this.frame = requestAnimationFrame(step);
        return;
      }
      set(edge, "data-busy", false);
      this._rest(pass.target);
      this._next();
    };
    this.frame = requestAnimationFrame(step);
  }
}

function sampleWords(token, drawn) {
  if (!token.passes) return "nothing to order: no pass in the last second";
  const took = token.path.at(-1)?.at_ms ?? 0;
  const slow = took && took < 900 ? `, which took ${count(Math.max(took, 1))} ms, slowed down` : "";
  if (drawn < token.passes) return `a sample: the last ${drawn} of ${count(token.passes)} passes of a second, slowed down`;
  return `${drawn} real ${drawn === 1 ? "pass" : "passes"} of the last second${drawn > 1 ? slow : ""}`;
}
