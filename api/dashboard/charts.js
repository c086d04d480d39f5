// Figures of the last two minutes, each with its line.

import { byId, figure, h, milliseconds, s, say, set } from "./dom.js";

const KEPT = 120;
const WIDTH = 240;
const HEIGHT = 56;

const perSecond = (value) => figure(value);
const TILES = [
  { id: "ordered", title: "Ordered", unit: "messages/s", of: [["ordered", (each) => each.ordering.rate]], words: perSecond },
  {
    id: "requests",
    title: "Requests",
    unit: "/s",
    of: [["answered", (each) => each.requests.rate], ["failed", (each) => each.requests.failed, "bad"]],
    words: perSecond,
  },
  {
    id: "writes",
    title: "Write latency",
    unit: "p99",
    of: [["p99", (each) => each.requests.writes.p99_ms], ["p50", (each) => each.requests.writes.p50_ms, "second"]],
    words: milliseconds,
  },
  {
    id: "reads",
    title: "Read latency",
    unit: "p99",
    of: [["p99", (each) => each.requests.reads.p99_ms], ["p50", (each) => each.requests.reads.p50_ms, "second"]],
    words: milliseconds,
  },
  {
    id: "again",
    title: "Retransmissions",
    unit: "/s",
    of: [["sent again", (each) => each.network.retransmitted], ["asked for", (each) => each.network.asked_again, "second"]],
    words: perSecond,
  },
  {
    id: "datagrams",
    title: "Datagrams",
    unit: "sent/s",
    of: [["sent", (each) => each.network.datagrams], ["dropped", (each) => each.network.dropped, "bad"]],
    words: perSecond,
  },
];

export class Charts {
  constructor() {
    this.seconds = [];
    this.tiles = TILES.map((tile) => {
      const lines = tile.of.map(([, , kind]) => s("path", { class: `line ${kind ?? "first"}` }));
      const area = s("path", { class: "area" });
      const plot = s("svg", { class: "plot", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" }, area, ...lines);
      const value = h("span", { class: "value" }, "–");
      const rest = h("p", { class: "hint" }, "–");
      const card = h(
        "div",
        { class: "card tile", id: `tile-${tile.id}` },
        h("h3", {}, tile.title),
        h("p", { class: "figure" }, value, " ", h("span", { class: "unit" }, tile.unit)),
        plot,
        rest,
      );
      byId("tiles").append(card);
      return { tile, plot, lines, area, value, rest };
    });
  }

  begin(seconds) {
    this.seconds = seconds.slice(-KEPT);
    this.draw();
  }

  add(second) {
    this.seconds = [...this.seconds, second].slice(-KEPT);
    this.draw();
  }

  draw() {
    const latest = this.seconds.at(-1);
    if (!latest) return;
    const end = latest.at_s;
    for (const { tile, plot, lines, area, value, rest } of this.tiles) {
      const series = tile.of.map(([, get]) => this.seconds.map((each) => [each.at_s - end, get(each)]));
      const known = series.flat().map(([, y]) => y).filter((y) => y !== null);
      const most = Math.max(...known, 0);
      const scale = most > 0 ? (HEIGHT - 6) / most : 0;
      lines.forEach((line, index) => {
        const calm = tile.of[index][2] === "bad" && series[index].every(([, y]) => !y);
        set(line, "d", calm ? "" : trace(series[index], scale));
      });
      set(area, "d", under(series[0], scale));
      say(value, tile.words(tile.of[0][1](latest)));
      const others = tile.of.slice(1).map(([name, get]) => `${name} ${tile.words(get(latest))}`);
      const words = [...others, `most ${tile.words(known.length ? most : null)}`];
      say(rest, words.join(" · "));
      set(plot, "aria-label", `${tile.title}, two minutes: now ${tile.words(tile.of[0][1](latest))} ${tile.unit}, ${words.join(", ")}`);
    }
  }
}

const xOf = (age) => WIDTH + (age * WIDTH) / KEPT;

/** Runs of known figures; what is not known, or was not looked at, is a gap. */
function runs(points) {
  const found = [];
  let before = null;
  for (const [age, y] of points) {
    if (y === null || age < -KEPT) {
      before = null;
      continue;
    }
    if (before === null || age - before > 3) found.push([]);
    found.at(-1).push([age, y]);
    before = age;
  }
  return found;
}

function trace(points, scale) {
  return runs(points)
    .map((run) => {
      const [first, ...more] = run.map(([age, y]) => `${xOf(age).toFixed(1)} ${(HEIGHT - 3 - y * scale).toFixed(1)}`);
      return `M${first}${more.length ? more.map((each) => `L${each}`).join("") : "h0.8"}`;
    })
    .join("");
}

function under(points, scale) {
  return runs(points)
    .filter((run) => run.length > 1)
    .map((run) => {
      const line = run.map(([age, y]) => `${xOf(age).toFixed(1)} ${(HEIGHT - 3 - y * scale).toFixed(1)}`).join("L");
      return `M${xOf(run[0][0]).toFixed(1)} ${HEIGHT}L${line}L${xOf(run.at(-1)[0]).toFixed(1)} ${HEIGHT}Z`;
    })
    .join("");
}
