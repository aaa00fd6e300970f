// The part that puts in: files by picker and by drop, a text, the sample; and how far each job is. Lists no documents.

import { call, events, get, Problem } from "./api.js";
import { refreshCollections } from "./collections.js";
import { listDocuments } from "./documents.js";
import { at, make, plural, problem } from "./dom.js";
import { COLLECTION, DOCUMENT } from "./samples.js";

const MOST_FILES = 200; // of one request
const MOST_BYTES = 32_000_000;
const FINE = { done: "done", failed: "some of it failed", cancelled: "cancelled", running: "computing" };

export function startUploads() {
  const drop = at("drop");
  at("files").addEventListener("change", (event) => {
    putFiles([...event.target.files]);
    event.target.value = "";
  });
  for (const name of ["dragenter", "dragover", "dragleave", "drop"]) {
    drop.addEventListener(name, (event) => {
      event.preventDefault();
      drop.classList.toggle("over", name === "dragenter" || name === "dragover");
    });
  }
  drop.addEventListener("drop", (event) => putFiles([...event.dataTransfer.files]));
  at("paste").addEventListener("submit", (event) => {
    event.preventDefault();
    putText();
  });
  document.addEventListener("listed", ({ detail: documents }) => {
    if (!documents && !at("list-collection").value) at("list-empty").append(" ", sampleButton());
  });
}

function sampleButton() {
  return make("button", { type: "button", click: putSample }, "Put in a sample, of which the built-in model knows");
}

const chosen = () => at("put-collection").value.trim() || "default";

function putFiles(files) {
  for (const group of grouped(files)) {
    const body = new FormData();
    body.set("collection", chosen());
    for (const file of group) body.append("files", file, file.name);
    follow(group.length === 1 ? group[0].name : plural(group.length, "file"), { body });
  }
}

// So that no request is larger than the service takes, unless one file is.
function grouped(files) {
  const groups = [];
  let bytes = Infinity;
  for (const file of files) {
    if (bytes + file.size > MOST_BYTES || groups.at(-1).length === MOST_FILES) {
      groups.push([]);
      bytes = 0;
    }
    groups.at(-1).push(file);
    bytes += file.size;
  }
  return groups;
}

async function putText() {
  const [title, id, text] = ["paste-title", "paste-id", "paste-text"].map((name) => at(name).value);
  const document = { text, title: title.trim(), id: id.trim() || undefined };
  const isSafe = await follow(title.trim() || id.trim() || "a text", { json: { documents: [document], collection: chosen() } });
  if (isSafe) at("paste").reset();
}

function putSample() {
  return follow("the sample", { json: { documents: [DOCUMENT], collection: COLLECTION } });
}

// Sends, and shows the job to its end. Was it taken?
async function follow(name, sent) {
  const state = make("span", { class: "state" }, "sending…");
  const bar = make("progress", { max: "1", "aria-label": `Progress of ${name}` });
  const cancel = make("button", { type: "button", class: "quiet", hidden: true, "aria-label": `Cancel ${name}` }, "Cancel");
  const more = make("div");
  at("jobs").prepend(make("li", {}, make("span", { class: "name" }, name), state, cancel, bar, more));
  at("no-jobs").hidden = true;
  let job = "";
  try {
    const taken = await (await call("POST", "v1/documents", sent)).json();
    job = taken.job_id;
    more.append(...taken.refused.map((reason) => make("p", { class: "problem" }, `not taken: ${reason}`)));
    cancel.addEventListener("click", () => cancelled(job, more));
    cancel.hidden = false;
    watched(job, { state, bar, cancel, more });
    return true;
  } catch (error) {
    ended({ state, bar, cancel }, "not taken");
    shown(error, more);
    return false;
  }
}

async function watched(job, { state, bar, cancel, more }) {
  try {
    let latest = null;
    for await (const [, told] of events("GET", `v1/jobs/${job}/events`)) {
      latest = told;
      state.textContent = wordsOf(told);
      bar.value = doneOf(told);
    }
    if (latest?.status === "running") throw new Problem("the connection broke before the end: the service goes on with this job");
    ended({ state, bar, cancel }, latest ? wordsOf(latest) : "forgotten");
    await Promise.all([failures(job, latest, more), listDocuments(), refreshCollections()]);
  } catch (error) {
    ended({ state, bar, cancel }, "not watched any more");
    shown(error, more);
  }
}

function wordsOf({ status, chunks, stored, over_budget: over, unsupported }) {
  const beside = [over ? `${over} over budget` : "", unsupported ? `${unsupported} without a cache` : ""].filter(Boolean);
  const kept = chunks ? `${stored} of ${plural(chunks, "chunk")} stored` : "";
  return [FINE[status] ?? status, kept, ...beside].filter(Boolean).join(", ");
}

// Of the uploads that are over; within the first ones, of the chunks.
function doneOf({ status, uploads, chunks, stored, over_budget: over, unsupported }) {
  if (status !== "running") return 1;
  const all = Object.values(uploads).reduce((sum, each) => sum + each, 0);
  const open = (uploads.waiting ?? 0) + (uploads.computing ?? 0);
  const ofChunks = chunks ? (stored + over + unsupported) / chunks : 0;
  return all === 1 ? ofChunks : (all - open) / all;
}

async function failures(job, latest, more) {
  if (!["done", "failed"].includes(latest?.status)) return;
  const { items } = await get(`v1/jobs/${job}?limit=1000`);
  const told = items.filter(({ state, file, detail }) => state === "failed" || (file && detail)); // or read in part
  more.append(...told.map(({ file, document, detail }) => make("p", { class: "problem" }, named(file || document, detail))));
}

const named = (name, detail) => (detail.startsWith(name) ? detail : `${name}: ${detail}`);

async function cancelled(job, more) {
  try {
    await call("DELETE", `v1/jobs/${job}`);
  } catch (error) {
    shown(error, more);
  }
}

function ended({ state, bar, cancel }, words) {
  state.textContent = words;
  bar.value = 1;
  bar.hidden = true;
  cancel.hidden = true;
}

function shown(error, place) {
  if (!(error instanceof Problem)) throw error;
  place.append(problem(error));
}
