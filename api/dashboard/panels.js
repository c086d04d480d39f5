// View history and locks.

import { byId, count, h, keyed, say, timeOf } from "./dom.js";

export function showViews(views, nameOf) {
  const newest = [...views].reverse();
  keyed(
    byId("views"),
    newest,
    (each) => `${each.view} ${each.slot}`,
    () =>
      h(
        "li",
        { class: "view" },
        h("p", { class: "line" }, h("strong"), h("time"), h("span", { class: "hint" })),
        h("p", { class: "why" }),
        h("p", { class: "chips" }),
      ),
    (element, each) => {
      const [line, why, chips] = element.children;
      const at = new Date(each.at_s * 1000);
      say(line.children[0], each.view);
      say(line.children[1], timeOf(at));
      line.children[1].dateTime = at.toISOString();
      say(line.children[2], `slot ${count(each.slot)}`);
      say(why, named(each.why, each, nameOf));
      keyed(chips, each.ring, (address) => address, () => h("span", { class: "chip" }), (chip, address) => say(chip, nameOf(address)));
    },
  );
}

/** A reason names addresses; people know names. */
function named(why, view, nameOf) {
  const addresses = [...new Set([...view.ring, ...view.electorate, ...view.learners])].sort((a, b) => b.length - a.length);
  return addresses.reduce((words, address) => words.replaceAll(address, nameOf(address)), why);
}

export function showLocks(cluster, locks, nameOf) {
  const handlers = cluster.locks.filter((lock) => lock.handler);
  const rows = [...new Set(handlers.map((lock) => lock.address))].map((address) => {
    const held = handlers.filter((lock) => lock.address === address);
    return {
      name: "answers to clients",
      holder: address ? nameOf(address) : "nobody",
      token: Math.max(...held.map((lock) => lock.fence)),
      waiting: held.reduce((sum, lock) => sum + lock.queue, 0),
    };
  });
  for (const lock of cluster.locks.filter((each) => !each.handler)) {
    rows.push({ name: lock.name, holder: lock.address ? nameOf(lock.address) : "a client", token: lock.fence, waiting: lock.queue });
  }
  for (const lock of locks) {
    rows.push({ name: lock.name ?? `base64 ${lock.name_base64}`, holder: `lease ${lock.lease}`, token: lock.token, waiting: lock.waiting });
  }
  keyed(
    byId("locks"),
    rows,
    (row) => `${row.name} ${row.holder}`,
    () => h("tr", {}, h("td", { class: "wrap" }), h("td"), h("td", { class: "number" }), h("td", { class: "number" })),
    (element, row) => {
      say(element.children[0], row.name);
      say(element.children[1], row.holder);
      say(element.children[2], count(row.token));
      say(element.children[3], count(row.waiting));
    },
  );
}
