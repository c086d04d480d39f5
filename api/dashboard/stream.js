// Server-sent events by fetch: EventSource can send no Authorization. A lost connection is made again, behind
// the last id, for as long as the page is there.

import { headers, open, problemOf } from "./door.js";

const PAUSE_MS = 400;
const PAUSE_MS_MAX = 5_000;
const BUFFER_MAX = 16 << 20;

/** Cuts a stream of text into events: {event, data, id}. Comments are dropped. */
export class Parser {
  constructor() {
    this.rest = "";
    this.id = "";
  }

  push(text) {
    const lines = (this.rest + text).split("\n\n");
    this.rest = lines.pop();
    if (this.rest.length > BUFFER_MAX) throw new Error("an event is too long");
    const events = [];
    for (const block of lines) {
      const found = { event: "message", data: "" };
      for (const line of block.split("\n")) {
        const colon = line.indexOf(": ");
        const [name, value] = colon < 0 ? [line, ""] : [line.slice(0, colon), line.slice(colon + 2)];
        if (name === "event") found.event = value;
        else if (name === "data") found.data = value;
        else if (name === "id") this.id = value;
      }
      if (found.data) events.push(found);
    }
    return events;
  }
}

/**
 * Follows `path` until `stop()`. `onEvent(kind, data)` for each event; `onState(state, words)` with "live",
 * "lost" and "refused". Silence for `silence_ms` is a lost connection too.
 */
export function follow(path, { onEvent, onState, silence_ms }) {
  let controller = new AbortController();
  let stopped = false;
  let last = "";
  let pause = PAUSE_MS;
  let wake = () => {};

  async function read() {
    controller = new AbortController();
    let timer = setTimeout(() => controller.abort(), silence_ms);
    try {
      const answer = await fetch(path, {
        headers: headers(last ? { "Last-Event-ID": last } : {}),
        cache: "no-store",
        signal: controller.signal,
      });
      if (!answer.ok) throw await problemOf(answer);
      onState("live", "");
      const parser = new Parser();
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return;
        clearTimeout(timer);
        timer = setTimeout(() => controller.abort(), silence_ms);
        for (const each of parser.push(value)) {
          pause = PAUSE_MS;
          onEvent(each.event, JSON.parse(each.data));
        }
        last = parser.id || last;
      }
    } finally {
      clearTimeout(timer);
      controller.abort();
    }
  }

  async function run() {
    while (!stopped) {
      let refused = null;
      try {
        await read();
      } catch (error) {
        if (error.status === 410 || error.code === "future") last = ""; // history is gone, or is another: begin anew
        refused = error.status >= 400 && error.status < 500 && error.status !== 429 ? error : null;
      }
      if (stopped) return;
      if (refused?.status === 401) {
        onState("refused", refused.message);
        await open(refused);
        continue;
      }
      onState(refused ? "refused" : "lost", refused?.message ?? "");
      await new Promise((resolve) => {
        wake = resolve;
        setTimeout(resolve, pause * (0.75 + Math.random() / 2));
      });
      pause = Math.min(pause * 1.6, PAUSE_MS_MAX);
    }
  }

  const again = () => wake();
  addEventListener("online", again);
  document.addEventListener("visibilitychange", again);
  run();
  return {
    stop() {
      stopped = true;
      removeEventListener("online", again);
      document.removeEventListener("visibilitychange", again);
      controller.abort();
      wake();
    },
  };
}
