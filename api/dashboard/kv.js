// Keys: put one, get it, delete it, and watch what changes.

import { byId, count, decoded, h, milliseconds, say, set } from "./dom.js";
import { ask } from "./door.js";
import { follow } from "./stream.js";

const ROWS_MAX = 50;
const SILENCE_MS = 25_000; // a watch says every ten seconds that it lives

export class Keys {
  constructor() {
    this.nameOf = (address) => address;
    this.stream = null;
    this.waiting = [];
    this.unseen = 0;
    byId("kv-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this._do(event.submitter?.dataset.do ?? "put");
    });
    byId("watch-form").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.stream) this._stop();
      else this._watch();
    });
  }

  async _do(what) {
    const key = byId("kv-key").value;
    const path = `/v1/kv/${encodeURIComponent(key)}`;
    const began = performance.now();
    try {
      const answer = await ask(path, { method: what.toUpperCase(), body: what === "put" ? byId("kv-value").value : undefined });
      const took = milliseconds(performance.now() - began);
      const revision = answer.headers.get("x-rsm-timestamp");
      const from = this.nameOf(answer.headers.get("x-rsm-replica") ?? "");
      let done = { put: answer.status === 201 ? "created" : "written", delete: "deleted" }[what];
      if (what === "get") {
        const bytes = new Uint8Array(await answer.arrayBuffer());
        done = textOf(bytes);
        if (done !== null) byId("kv-value").value = done;
        done = done === null ? `${count(bytes.length)} bytes that are no text` : `“${done.slice(0, 200)}”`;
      }
      this._result(true, `${key}: ${done} · slot ${count(Number(revision))} · ${from} · ${took}`);
    } catch (error) {
      this._result(false, `${key}: ${error.status ? error.message : "the gateway cannot be reached"}`);
    }
  }

  _result(good, words) {
    set(byId("kv-result"), "data-good", good);
    say(byId("kv-result"), words);
  }

  // -- watching ------------------------------------------------------------------------------------

  _watch() {
    const prefix = byId("watch-prefix").value;
    byId("watch-rows").replaceChildren();
    this.waiting = [];
    this.unseen = 0;
    this.stream = follow(`/v1/watch?prefix=${encodeURIComponent(prefix)}`, {
      silence_ms: SILENCE_MS,
      onState: (state, words) => this._state(state, words),
      onEvent: (kind, data) => this._event(kind, data),
    });
    say(byId("watch-button"), "Stop");
    set(byId("watch-button"), "aria-pressed", true);
    byId("watch-prefix").readOnly = true;
  }

  _stop() {
    this.stream.stop();
    this.stream = null;
    say(byId("watch-button"), "Watch");
    set(byId("watch-button"), "aria-pressed", false);
    byId("watch-prefix").readOnly = false;
    say(byId("watch-words"), "");
  }

  _state(state, words) {
    this.state = { live: "watching", lost: "reconnecting; nothing will be missed", refused: words }[state];
    this._say();
  }

  _say() {
    const more = this.unseen ? `; ${count(this.unseen)} more than are shown` : "";
    say(byId("watch-words"), this.stream ? this.state + more : "");
  }

  _event(kind, data) {
    if (kind === "error") this._state("refused", data.detail);
    if (kind !== "put" && kind !== "delete") return;
    if (!this.waiting.length) requestAnimationFrame(() => this._draw());
    this.waiting.push(data);
    if (this.waiting.length > ROWS_MAX) {
      this.waiting.shift();
      this.unseen += 1;
    }
  }

  _draw() {
    const rows = byId("watch-rows");
    for (const each of this.waiting.splice(0)) {
      const words = each.event === "put" ? "put" : each.expired ? "expired" : "deleted";
      rows.prepend(
        h(
          "tr",
          { class: "fresh" },
          h("td", { class: "number" }, count(each.revision)),
          h("td", {}, h("span", { class: "kind", "data-kind": each.event }, words)),
          h("td", { class: "text" }, shown(each.key, each.key_base64)),
          h("td", { class: "text" }, each.event === "put" ? shown(each.value, each.value_base64) : ""),
        ),
      );
    }
    while (rows.children.length > ROWS_MAX) {
      rows.lastElementChild.remove();
      this.unseen += 1;
    }
    this._say();
  }
}

const shown = (text, base64) => (text === undefined ? (decoded(base64 ?? "") ?? `base64 ${base64}`) : text).slice(0, 200);

function textOf(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return null;
  }
}
