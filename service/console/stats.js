// The part that counts: what there is, what was saved, and what each tier holds. Changes nothing.

import { get, Problem } from "./api.js";
import { tierOf } from "./answer.js";
import { at, bar, count, figures, legend, make, percent, problem, size } from "./dom.js";

export function startStats() {
  at("stats-refresh").addEventListener("click", showStats);
}

export async function showStats() {
  at("stats-refresh").disabled = true;
  try {
    const stats = await get("v1/stats");
    at("stats-problem").replaceChildren();
    at("stats-body").replaceChildren(...told(stats));
    at("stats-when").textContent = `as of ${new Date().toLocaleTimeString()}`;
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    at("stats-problem").replaceChildren(problem(error));
  } finally {
    at("stats-refresh").disabled = false;
  }
}

function told({ documents, chunks, served, store, bytes_per_token: bytes }) {
  const rates = served ? Object.values(served.hit_rates) : [];
  const hits = rates.reduce((all, rate) => all + rate, 0);
  const saved = served?.prompt_tokens ? percent(served.tokens_saved / served.prompt_tokens) : "";
  return [
    figures([
      ["documents", count(documents)],
      ["chunks", count(chunks)],
      ["bytes a token", bytes === null ? "–" : count(Math.round(bytes))],
      ["requests", served ? count(served.requests) : "–"],
      ["hit rate", rates.length ? percent(hits) : "–"],
      ["tokens saved", served ? count(served.tokens_saved) : "–", saved && `${saved} of all prompts`],
    ]),
    make("p", { class: "hint" }, "Requests, hit rate and tokens saved: since the service started."),
    served ? sources(served) : make("p", { class: "hint" }, "A key with a filter is not told what others asked."),
    store ? tiers(store) : make("p", { class: "hint" }, "What the store holds is told to operators alone."),
  ];
}

function sources({ sources: found, hit_rates: rates }) {
  const entries = Object.entries(found).map(([name, value]) => ({
    name, value, kind: tierOf(name) || "tier-other", told: name in rates ? `${count(value)} (${percent(rates[name])})` : count(value),
  }));
  const words = entries.length ? entries.map(({ name, told: number }) => `${name} ${number}`).join(", ") : "none yet";
  return make("div", {},
    make("h3", {}, "Where the chunks of answers came from", make("small", {}, " those of a full prefill are computed, too")),
    bar(entries, `Chunks: ${words}`),
    entries.length ? legend(entries) : make("p", { class: "hint" }, "Nothing was asked yet."));
}

function tiers(store) {
  const rows = store.map(({ tier, blobs, bytes, budget }) => make("tr", {},
    make("td", { "data-name": "tier" }, make("span", { class: `badge ${tierOf(tier)}` }, tier)),
    make("td", { class: "number", "data-name": "blobs" }, count(blobs)),
    make("td", { class: "number", "data-name": "holds" }, size(bytes)),
    make("td", { class: "number", "data-name": "budget" }, budget === null ? "no limit" : size(budget)),
    make("td", { "data-name": "used" }, budget ? filling(tier, bytes, budget) : "–")));
  const head = [["Tier"], ["Blobs", "number"], ["Holds", "number"], ["Budget", "number"], ["Used"]];
  return make("div", {},
    make("h3", {}, "The store, tier by tier"),
    make("table", { class: "rows", "aria-label": "Tiers of the store" },
      make("thead", {}, make("tr", {}, ...head.map(([name, kind]) => make("th", { class: kind }, name)))),
      make("tbody", {}, ...rows)));
}

function filling(tier, bytes, budget) {
  const share = Math.min(1, bytes / budget);
  return make("div", { class: "filling" },
    bar([{ name: tier, value: 1, kind: tierOf(tier) || "tier-other" }], `${percent(share)} used`, share), make("span", {}, percent(share)));
}
