// The rules of the collection that is chosen in the list: what counts as found, and what is said where nothing is.

import { call, get, Problem } from "./api.js";
import { at, problem } from "./dom.js";

let rules = null; // all of the collection's, as a change wants them whole

export function startRules() {
  at("list-collection").addEventListener("change", showRules);
  at("rules-form").addEventListener("submit", (event) => {
    event.preventDefault();
    keep();
  });
}

const place = () => `v1/collections/${encodeURIComponent(at("list-collection").value)}`;

export async function showRules() {
  at("rules").hidden = !at("list-collection").value;
  at("rules-note").replaceChildren();
  rules = null;
  if (at("rules").hidden) return;
  await reporting(async () => {
    const asked = place();
    const { name, documents, filler, ...found } = await get(asked);
    if (asked !== place()) return; // another was chosen meanwhile
    rules = found;
    at("rules-floor").value = rules.floor ?? "";
    at("rules-on-empty").value = rules.on_empty;
  });
}

async function keep() {
  if (!rules) return;
  const floor = at("rules-floor").value;
  const changed = { ...rules, floor: floor === "" ? null : Number(floor), on_empty: at("rules-on-empty").value };
  await reporting(async () => {
    await call("PUT", place(), { json: changed });
    rules = changed;
    at("rules-note").replaceChildren("Kept.");
  });
}

async function reporting(work) {
  try {
    await work();
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    at("rules-note").replaceChildren(problem(error));
  }
}
