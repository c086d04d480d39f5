// One stream of events, and what is drawn of it.

import { Actions, showSites } from "./actions.js";
import { Charts } from "./charts.js";
import { byId, count, duration, say, set, timeOf } from "./dom.js";
import * as door from "./door.js";
import { Keys } from "./kv.js";
import { Log } from "./log.js";
import { Members, membersOf } from "./members.js";
import { showLocks, showViews } from "./panels.js";
import { Ring } from "./ring.js";
import { follow } from "./stream.js";

const SILENCE_MS = 8_000; // something comes every second

const told = { cluster: null, demo: null, locks: [], sites: [], heard: null, since: null, words: "" };
const ring = new Ring();
const charts = new Charts();
const members = new Members(announce);
const keys = new Keys();
const actions = new Actions();
const log = new Log();
let names = new Map();
let shown = new Map();

/** For those who do not see it: what has changed, and not what merely counts on. */
function announce(words) {
  say(byId("news"), words);
}

const nameOf = (address) => names.get(address) ?? address;

function drawCluster() {
  const { cluster, demo } = told;
  if (!cluster) return;
  const list = membersOf(cluster, demo);
  names = new Map(list.map((each) => [each.address, each.name]));
  // One that came back without its memory is another site at the same address, until the old one is removed.
  const outsideFirst = [...list].sort((a, b) => a.inRing - b.inRing);
  const sites = new Map(outsideFirst.map((each) => [each.address, each.site]));
  const bySite = new Map(list.map((each) => [each.site, each.name]));
  keys.nameOf = nameOf;
  log.nameOf = (site) => bySite.get(site) ?? site;
  const order = (cluster.views.at(-1)?.ring ?? []).filter((address) => sites.has(address));
  const inRing = order.filter((address) => list.some((each) => each.address === address && each.inRing));
  ring.show(list, inRing.map((address) => sites.get(address)), cluster.view, cluster.token.site);
  members.show(list, demo);
  showViews(cluster.views, nameOf);
  showLocks(cluster, told.locks, nameOf);
  showSites(told.sites, nameOf);
  showApp(cluster.app);
  const slot = Math.max(...list.map((each) => each.applied ?? 0));
  log.reached(slot);
  document.title = `${cluster.group} · rsm`;
  say(byId("group"), cluster.group);
  say(byId("fact-view"), cluster.view);
  say(byId("fact-slot"), count(slot));
  say(byId("fact-primary"), cluster.primary ? "serves" : "lost");
  set(byId("fact-primary"), "data-good", cluster.primary);
  tellNews(list, cluster);
}

/** Keys, or actions: what the group runs. */
function showApp(app) {
  const runsActions = app === "actions";
  for (const id of ["actions-card", "sites-card", "actions-source"]) byId(id).hidden = !runsActions;
  byId("kv-card").hidden = runsActions;
  if (runsActions) actions.begin();
}

function tellNews(list, cluster) {
  const now = new Map([...list.map((each) => [each.name, each.words]), ["the view", cluster.view]]);
  if (shown.size) {
    const changed = [...now].filter(([name, words]) => shown.get(name) !== words);
    if (changed.length) announce(changed.map(([name, words]) => `${name} is ${words}`).join("; "));
  }
  shown = now;
}

const events = {
  history: ({ seconds }) => charts.begin(seconds),
  second(second) {
    charts.add(second);
    ring.move(second.token, second.passes, told.cluster?.token.site ?? "");
  },
  cluster(cluster) {
    told.cluster = cluster;
    problem(cluster.primary ? "" : "no majority serves; commands are refused until it is back");
    drawCluster();
  },
  demo(demo) {
    told.demo = demo;
    drawCluster();
  },
  locks({ items }) {
    told.locks = items;
    drawCluster();
  },
  sites({ items }) {
    told.sites = items;
    drawCluster();
  },
  error: ({ code, detail }) => problem(code === "stopping" ? "" : detail), // that it stops is seen soon enough
};

function problem(words) {
  const place = byId("problem");
  place.hidden = !words;
  say(place, words ? `The group: ${words}` : "");
}

function connection(state, words = "") {
  const live = state === "live";
  if (live && told.since) announce("connected again");
  told.since = live ? null : (told.since ?? told.heard ?? new Date());
  set(byId("connection"), "data-state", state);
  document.body.classList.toggle("stale", !live && told.cluster !== null);
  told.words = words;
  tick();
}

/** Since when, in words; a person waits for it to grow, a screen reader is told once. */
function tick() {
  const state = byId("connection").dataset.state;
  const since = told.since;
  const waited = since ? `since ${timeOf(since)} (${duration((Date.now() - since) / 1000)})` : "";
  const words = { live: "live", lost: `reconnecting ${waited}`, refused: told.words || "refused", connecting: "connecting" }[state];
  say(byId("connection-words"), words);
}

door.set();
follow("/v1/cluster/events", {
  silence_ms: SILENCE_MS,
  onEvent(kind, data) {
    told.heard = new Date();
    events[kind]?.(data);
  },
  onState(state, words) {
    if (state === "lost" && byId("connection").dataset.state !== "lost") announce("the gateway is lost, reconnecting");
    connection(state, words);
  },
});
setInterval(tick, 1000);
