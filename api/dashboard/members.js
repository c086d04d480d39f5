// Who is in the group, how each stands, and, in a demo, what to do to it.

import { byId, count, h, keyed, say, set, size } from "./dom.js";
import { ask } from "./door.js";

const ACTIONS = [
  { order: "pause", words: "Pause", when: ["running"] },
  { order: "resume", words: "Resume", when: ["paused"] },
  { order: "kill", words: "Kill", when: ["running", "paused", "starting", "stopping"], danger: true },
  { order: "restart", words: "Restart", when: ["running", "paused", "down"] },
];

/** What is told of the group, and of a demo's processes, as one list; `standing` is what colours go by. */
export function membersOf(cluster, demo) {
  const processes = new Map((demo?.members ?? []).map((each) => [each.address, each]));
  const order = [...processes.keys()];
  const place = (address) => (order.includes(address) ? order.indexOf(address) : order.length);
  const handlers = new Set(cluster.locks.filter((lock) => lock.handler).map((lock) => lock.address));
  return [...cluster.members]
    .sort((a, b) => place(a.address) - place(b.address) || a.address.localeCompare(b.address, "en", { numeric: true }))
    .map((member, index) => {
      const process = processes.get(member.address);
      return {
        ...member,
        process,
        name: process?.name ?? member.name,
        label: process?.name.match(/\d+$/)?.[0] ?? String(index + 1),
        inRing: member.role === "ring",
        handler: handlers.has(member.address),
        ...standingOf(member, process),
      };
    });
}

function standingOf(member, process) {
  if (process?.state === "paused") return { standing: "paused", words: "paused" };
  if (process?.state === "down") return { standing: "down", words: "down" };
  if (process?.state === "stopping") return { standing: "down", words: "stopping" };
  if (process?.state === "starting") return { standing: "coming", words: "starting" };
  if (member.state === "silent") return { standing: "silent", words: "silent" };
  if (member.state !== "serving") return { standing: "coming", words: member.state };
  return { standing: "serving", words: member.role === "ring" ? "serving" : `serving, ${member.role}` };
}

export class Members {
  constructor(tell) {
    this.list = byId("members");
    this.tell = tell;
  }

  show(members, demo) {
    const serving = members.filter((each) => each.standing === "serving").length;
    say(byId("members-words"), `${serving} of ${members.length} serve`);
    keyed(this.list, members, (each) => each.site, (each) => this._make(each), (element, each) => this._update(element, each, demo));
  }

  _make(member) {
    const fact = (name, words, title) => h("div", { title }, h("dt", {}, words), h("dd", { class: name }));
    const buttons = ACTIONS.map(({ order, words, danger }) =>
      h("button", { type: "button", "data-order": order, class: danger ? "danger" : "", onclick: () => this._order(member.address, order) }, words),
    );
    return h(
      "li",
      { class: "member", "data-address": member.address },
      h("div", { class: "who" }, h("span", { class: "order", "aria-hidden": "true" }), h("h3", {}), h("span", { class: "pill" }), h("span", { class: "tag", title: "It holds the lock that says who answers clients" }, "answers")),
      h("p", { class: "where hint" }),
      h(
        "dl",
        { class: "facts" },
        fact("role", "Role", "In the ring; or external: a voter out of it; or a learner"),
        fact("applied", "Applied", "Everything up to this slot is executed there"),
        fact("lag", "Behind", "Slots that are known to be ordered and not executed there"),
        fact("log", "Log", "The database on its disk"),
      ),
      h("div", { class: "actions buttons", role: "group" }, ...buttons),
    );
  }

  _update(element, member, demo) {
    const find = (name) => element.querySelector(name);
    set(element, "data-standing", member.standing);
    set(element, "data-ring", member.inRing);
    say(find(".order"), member.label);
    say(find("h3"), member.name);
    say(find(".pill"), member.words);
    find(".tag").hidden = !member.handler;
    const pid = member.process ? member.process.pid : member.pid;
    const where = [member.name === member.address ? "" : member.address, pid ? `pid ${pid}` : member.process ? "no process" : "does not answer"];
    say(find(".where"), where.filter(Boolean).join(" · "));
    say(find(".role"), member.role);
    say(find(".applied"), count(member.applied));
    // Of one that is out of the ring and says nothing nobody knows how far it is.
    const unknown = member.state === "silent" && !member.held;
    say(find(".lag"), unknown ? "–" : count(member.lag));
    say(find(".log"), member.log_bytes ? size(member.log_bytes) : "–");
    this._buttons(find(".actions"), member, demo);
  }

  _buttons(actions, member, demo) {
    actions.hidden = !demo || !member.process;
    if (actions.hidden) return;
    set(actions, "aria-label", `Do to ${member.name}`);
    for (const button of actions.children) {
      const { when, words, order } = ACTIONS.find((each) => each.order === button.dataset.order);
      const possible = when.includes(member.process.state);
      const twin = order === "pause" || order === "resume";
      // One of the two stands there; who has it under the finger keeps the focus.
      const hide = twin && (order === "resume") !== (member.process.state === "paused");
      if (hide && button === document.activeElement) queueMicrotask(() => actions.querySelector("button:not([hidden])")?.focus());
      button.hidden = hide;
      set(button, "aria-disabled", !possible || null);
      set(button, "aria-label", `${words} ${member.name}`);
    }
    this.processes = demo.members;
  }

  async _order(address, order) {
    const process = this.processes.find((each) => each.address === address);
    const { when } = ACTIONS.find((each) => each.order === order);
    if (!when.includes(process.state)) return;
    try {
      await ask(`/v1/demo/members/${encodeURIComponent(process.name)}:${order}`, { method: "POST" });
    } catch (error) {
      this.tell(`${process.name}: ${error.message}`);
    }
  }
}
