// Who are we to the gateway? A token, for this tab alone; and requests that carry it.

import { byId, say } from "./dom.js";

const KEY = "rsm-token";
const waiting = [];

export const token = () => sessionStorage.getItem(KEY) ?? "";

export function headers(more = {}) {
  return token() ? { ...more, Authorization: `Bearer ${token()}` } : more;
}

export class Problem extends Error {
  constructor(status, body) {
    super(body.detail ?? body.title ?? `the gateway answered ${status}`);
    this.status = status;
    this.code = body.code ?? "";
    this.scope = body.scope ?? "";
  }
}

export async function problemOf(answer) {
  const body = await answer.json().catch(() => ({}));
  const problem = new Problem(answer.status, body);
  if (problem.status === 403 && problem.scope) problem.message = `the token lacks the scope ${problem.scope}`;
  return problem;
}

/** Asks, and throws a Problem for every answer that is one. */
export async function ask(path, options = {}) {
  const answer = await fetch(path, { ...options, headers: headers(options.headers), cache: "no-store" });
  if (answer.ok) return answer;
  const problem = await problemOf(answer);
  if (problem.status === 401) open(problem);
  throw problem;
}

/** Shows the door; resolves when a token was given. */
export function open(problem) {
  say(byId("door-words"), token() ? `${problem.message}.` : "This gateway serves those who have a token.");
  if (byId("door").hidden) {
    byId("door").hidden = false;
    byId("door-token").focus();
  }
  return new Promise((resolve) => waiting.push(resolve));
}

export function set() {
  byId("door-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const field = byId("door-token");
    sessionStorage.setItem(KEY, field.value.trim());
    field.value = "";
    byId("door").hidden = true;
    byId("forget").hidden = false;
    for (const resolve of waiting.splice(0)) resolve();
  });
  byId("forget").hidden = !token();
  byId("forget").addEventListener("click", () => {
    sessionStorage.removeItem(KEY);
    location.reload();
  });
}
