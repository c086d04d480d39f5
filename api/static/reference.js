// Tries reads of the API out, from this gateway and none else. What comes back is shown as text.
"use strict";

const SHOWN_MAX = 65536;

function requestOf(form) {
  let path = form.dataset.path;
  const query = new URLSearchParams();
  const headers = {};
  for (const field of form.querySelectorAll("input")) {
    if (field.value === "") continue;
    if (field.dataset.in === "path") {
      path = path.replace(`{${field.name}}`, field.value.split("/").map(encodeURIComponent).join("/"));
    } else if (field.dataset.in === "query") {
      query.set(field.name, field.value);
    } else {
      headers[field.name] = field.value;
    }
  }
  const token = document.getElementById("token");
  if (token && token.value) headers["Authorization"] = `Bearer ${token.value}`;
  const asked = query.toString();
  return [asked ? `${path}?${asked}` : path, { headers, cache: "no-store" }];
}

async function answerTo(form) {
  const [path, settings] = requestOf(form);
  const answer = await fetch(path, settings);
  const body = await answer.text();
  const told = [...answer.headers].map(([name, value]) => `${name}: ${value}`);
  const rest = body.length > SHOWN_MAX ? `\n… ${body.length - SHOWN_MAX} more characters` : "";
  return `GET ${path}\n${answer.status} ${answer.statusText}\n${told.join("\n")}\n\n${pretty(body.slice(0, SHOWN_MAX))}${rest}`;
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

for (const form of document.querySelectorAll("form.try")) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const shown = form.querySelector("pre.answer");
    shown.hidden = false;
    shown.textContent = "…";
    try {
      shown.textContent = await answerTo(form);
    } catch (error) {
      shown.textContent = `no answer: ${error.message}`;
    }
  });
}

// A link to a shape or an operation opens it.
function open() {
  const found = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (found instanceof HTMLDetailsElement) found.open = true;
}
addEventListener("hashchange", open);
open();
