// One answer as it comes: its words, its sources, where their caches came from, and its times. Asks nothing.

import { bar, count, duration, figures, legend, make, percent, plural, problem, size } from "./dom.js";
import { drawMarkdown } from "./markdown.js";
import { finder, headingOf, marked, previewOf } from "./passages.js";
import { isFixed } from "./policies.js";

const COMPUTED = "computed";
const STAGES = ["retrieve", "fetch", "queue", "unpack", "fuse"];
const STATES = { retrieved: "reading the caches…", loaded: "fusing…", fused: "answering…", token: "answering…" };
const ENDS = { stop: "done", length: "cut: it reached the longest answer", cancelled: "cancelled" };

export class Answer {
  constructor(title, question) {
    this.found = finder(question);
    this.words = ""; // the answer as far as it came
    this.done = null; // what the event `done` told
    this.usage = null;
    this.report = null;
    this.sources = [];
    this.state = make("span", { class: "state", role: "status" }, "searching…");
    this.text = make("div", { class: "text", role: "region", "aria-live": "polite", "aria-busy": "true", "aria-label": title, tabindex: "0" });
    this.title = make("h2", {}, title);
    this.notes = make("div", { role: "note" });
    [this.figures, this.prompt, this.times, this.list] = ["sums", "prompt", "times", "sources"].map((name) => make("div", { class: name }));
    this.root = make("article", { class: "panel answer" },
      make("header", { class: "bar" }, this.title, this.state), this.notes, this.text, this.figures, this.prompt, this.times, this.list);
    this.#draw();
  }

  hear(name, told) {
    this.state.textContent = STATES[name] ?? this.state.textContent;
    if (name === "token") {
      this.words += told.text;
      drawMarkdown(this.text, this.words);
      return;
    }
    if (name === "retrieved") this.sources = told.sources;
    if (name === "loaded") this.report = { chunks: told.chunks, dropped: [], timings_ms: {} };
    if (name === "fused" || name === "done") ({ usage: this.usage, report: this.report } = told);
    if (name === "done") {
      this.done = told;
      this.#end(ENDS[told.finish_reason] ?? told.finish_reason);
    }
    this.#draw();
  }

  fail(error) {
    this.#end("failed");
    this.text.append(make("div", { role: "alert" }, problem(error)));
  }

  stop() {
    this.#end("stopped");
    if (!this.text.textContent) this.text.append(make("span", { class: "hint" }, "Stopped before the first token."));
  }

  // Times are drawn to one scale where two answers stand side by side.
  scale(longest) {
    this.#drawTimes(longest);
  }

  get total() {
    return this.done?.report.timings_ms.total ?? 0;
  }

  #end(words) {
    this.state.textContent = words;
    this.text.setAttribute("aria-busy", "false");
  }

  #draw() {
    this.notes.replaceChildren(...(this.report?.notes ?? []).map((note) => make("p", { class: "note" }, note)));
    this.#drawFigures();
    this.#drawPrompt();
    this.#drawTimes(this.total);
    this.#drawSources();
  }

  #drawFigures() {
    const { usage, report, done } = this;
    const first = report?.timings_ms.first_token;
    const share = (tokens) => (usage?.prompt_tokens ? percent(tokens / usage.prompt_tokens) : "");
    this.figures.replaceChildren(figures([
      ["first token", first === undefined ? "–" : duration(first)],
      ["prompt", usage ? count(usage.prompt_tokens) : "–", usage ? "tokens" : ""],
      ["reused", usage ? count(usage.reused_tokens) : "–", usage && share(usage.reused_tokens)],
      ["recomputed", usage ? count(usage.recomputed_tokens) : "–", usage && share(usage.recomputed_tokens)],
      ["fresh", usage ? count(freshOf(usage)) : "–", usage && share(freshOf(usage))],
      ["answer", done ? count(usage.completion_tokens) : "–", done ? "tokens" : ""],
    ]));
    if (!report?.policy) return;
    this.title.textContent = policyOf(report);
    this.text.setAttribute("aria-label", `Answer, ${policyOf(report)}`);
  }

  #drawPrompt() {
    const { usage, report } = this;
    const sums = usage && { reused: usage.reused_tokens, recomputed: usage.recomputed_tokens, fresh: freshOf(usage) };
    const told = ["reused", "recomputed", "fresh"].map((kind) => ({ kind, name: kind, told: sums ? count(sums[kind]) : "–" }));
    const words = `Prompt: ${told.map(({ name, told: number }) => `${number} ${name}`).join(", ")} tokens`;
    const how = " chunks in their order, from the foot of each what was recomputed of it; then all else";
    this.prompt.replaceChildren(
      make("h3", {}, "The prompt", make("small", {}, how)), bar(usage ? partsOf(usage, report.chunks) : [], words), legend(told));
  }

  #drawTimes(longest) {
    const stages = this.report ? stagesOf(this.report.timings_ms) : [];
    const { total, first_token: first } = this.report?.timings_ms ?? {};
    const sum = total === undefined ? "" : ` ${first === undefined ? "" : `first token after ${duration(first)}, `}${duration(total)} in all, on the server`;
    const entries = [...STAGES, "first decode", "further tokens"].map((name, number) => {
      const stage = stages.find((each) => each.name === name);
      return { name, kind: `stage-${number}`, value: stage?.value ?? 0, told: stage ? duration(stage.value) : "–" };
    });
    const words = `Times: ${entries.map(({ name, told }) => `${name} ${told}`).join(", ")}`;
    const share = longest ? (total ?? 0) / longest : 1;
    this.times.replaceChildren(
      make("h3", {}, "Time", make("small", {}, sum)),
      bar(entries.map((entry) => ({ ...entry, name: `${entry.name} ${entry.told}` })), words, share), legend(entries));
  }

  #drawSources() {
    const chunks = new Map((this.report?.chunks ?? []).map((chunk) => [chunk.chunk_id, chunk]));
    const placeOf = (node) => node?.closest("details")?.dataset.place;
    const open = new Set([...this.list.querySelectorAll("details[open]")].map(placeOf));
    const focused = this.list.contains(document.activeElement) ? placeOf(document.activeElement) : undefined;
    const entries = this.sources.map((source, place) => {
      const shown = entryOf(source, place, this.report && (chunks.get(source.chunk_id) ?? null), this.found);
      shown.open = open.has(String(place));
      return make("li", {}, shown);
    });
    const nothing = this.done && !entries.length ? make("p", { class: "hint" }, "No chunk was found for this question.") : null;
    this.list.replaceChildren(
      make("h3", {}, "Sources", make("small", {}, this.sources.length ? ` ${plural(this.sources.length, "chunk")}, in the order of the prompt${relevanceOf(this.report)}` : "")),
      make("ol", {}, ...entries), nothing ?? "");
    if (focused !== undefined) this.list.querySelectorAll("summary")[focused]?.focus();
  }
}

const relevanceOf = (report) =>
  report?.relevance ? `; relevance of the best ${report.relevance.best.toFixed(2)}, found from ${report.relevance.floor.toFixed(2)}` : "";

export const policyOf = ({ policy, ratio, reason }) =>
  policy === "full" ? `Full prefill${reason ? `, ${reason}` : ""}` : isFixed(policy) ? policy : `${policy}, ratio ${ratio}`;

const freshOf = (usage) => usage.prompt_tokens - usage.reused_tokens - usage.recomputed_tokens;

// The prompt in parts. Of a chunk is told how many of its tokens were recomputed, not which: they are a share of its height.
// What was reused beside the chunks is the prompt's head, kept from an earlier request, and titles stored with their chunks.
function partsOf(usage, chunks) {
  const parts = chunks.map(({ source, tokens, recomputed }) => ({
    kind: source === COMPUTED ? "fresh" : "reused",
    value: tokens,
    share: tokens ? recomputed / tokens : 0,
    name: `${source}: ${plural(tokens, "token")}, of these ${count(recomputed)} recomputed`,
  }));
  const rest = (kind) => chunks.reduce((all, { source, tokens, recomputed }) => {
    return all - ((source === COMPUTED) === (kind === "fresh") ? tokens - recomputed : 0);
  }, kind === "fresh" ? freshOf(usage) : usage.reused_tokens);
  const [head, fresh] = [Math.max(0, rest("reused")), Math.max(0, rest("fresh"))];
  return [
    ...parts,
    { kind: "reused", value: head, name: `instructions and titles, kept: ${plural(head, "token")}` },
    { kind: "fresh", value: fresh, name: `instructions, titles, question: ${plural(fresh, "token")}` },
  ];
}

// Stage behind stage. What no stage accounts for before the first token is its own.
function stagesOf(timings) {
  const stages = STAGES.filter((name) => name in timings).map((name) => ({ name, value: timings[name] }));
  const { first_token: first, total } = timings;
  if (first !== undefined) {
    const before = stages.reduce((all, { value }) => all + value, 0);
    stages.push({ name: "first decode", value: Math.max(0, first - before) });
  }
  if (total !== undefined) stages.push({ name: "further tokens", value: Math.max(0, total - (first ?? total)) });
  return stages;
}

// A source with what became of its chunk: `chunk` is null for one that had no room, undefined where it is not known yet.
function entryOf(source, place, chunk, found) {
  const badge = chunk ? chunk.source : chunk === null ? "left out" : "…";
  const fate = chunk?.tokens
    ? [`${plural(chunk.tokens, "token")}`, `${count(chunk.recomputed)} recomputed`, chunk.bytes ? size(chunk.bytes) : "nothing read"]
    : [chunk === null ? "no room in the model's window" : ""];
  const where = [headingOf(source.text, source.title, found), source.page === null ? "" : `page ${source.page}`].filter(Boolean);
  const reason = chunk?.miss_reason ? make("span", { class: "miss" }, `missed: ${chunk.miss_reason}`) : null;
  return make("details", { "data-place": place },
    make("summary", {},
      make("span", { class: "name" }, source.title || source.document_id || source.chunk_id, make("small", {}, ["", ...where].join(" · "))),
      make("span", { class: `badge ${tierOf(badge)}` }, badge),
      make("span", { class: "preview" }, ...marked(previewOf(source.text, found), found)),
      make("span", { class: "fate" }, [...fate, `score ${source.score.toFixed(2)}`].filter(Boolean).join(" · "), reason && " · ", reason)),
    make("p", { class: "passage" }, ...marked(source.text, found)),
    make("p", { class: "hint" },
      ...(source.document_id ? [make("a", { href: `#documents/${encodeURIComponent(source.document_id)}` }, source.document_id), " · "] : []),
      `chunk ${source.chunk_id}`));
}

export const tierOf = (name) => (["ram", "lmdb", "s3", COMPUTED].includes(name) ? `tier-${name}` : "");
