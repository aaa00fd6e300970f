// The jobs that there are, of this page and of others: how far each is, and the fate of each file by its name. Begins none.

import { call, get, Problem } from "./api.js";
import { refreshCollections } from "./collections.js";
import { listDocuments } from "./documents.js";
import { at, make, plural, problem, when } from "./dom.js";

const LOOKED_AT = 50; // the newest, of which those that run are shown, and
const SHOWN = 10; // that many at least
const LISTED = 200; // files and documents of one job
const [SOON_MS, LATER_MS] = [1500, 5000]; // between two looks, while one runs and while none does
const ENDS = { done: "done", failed: "some of it failed", cancelled: "cancelled", running: "computing" };
const FATES = { waiting: "waits", computing: "computing", cancelled: "cancelled", deleted: "deleted", superseded: "replaced by a later one" };

const entries = new Map(); // by the job's id
let waiting = 0;

// Shows the newest jobs, and looks again while they are in sight.
export async function listJobs() {
  try {
    const { jobs } = await get(`v1/jobs?limit=${LOOKED_AT}`);
    const shown = jobs.filter(({ id, status }, number) => number < SHOWN || status === "running" || entries.has(id));
    await Promise.all(shown.reverse().map((job) => entryOf(job).show(job)));
    at("no-jobs").textContent = entries.size ? sentence(jobs[0]?.search_waits ?? "") : "None yet.";
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    at("no-jobs").textContent = error.status === 403 ? "This key is not told of jobs." : error.message;
  }
  wait();
}

function wait() {
  clearTimeout(waiting);
  const isSoon = [...entries.values()].some(({ job }) => job?.status === "running");
  const isSeen = () => at("jobs").checkVisibility() && !document.hidden;
  waiting = setTimeout(() => (isSeen() ? listJobs() : wait()), isSoon ? SOON_MS : LATER_MS);
}

// Shows a job of this page, and the files that were not taken beside it, in the place of what said that it is sent.
export async function showJob(id, { refused, instead }) {
  const job = await get(`v1/jobs/${id}`);
  const entry = entryOf(job);
  entry.isOwn = true;
  entry.refused.append(...refused.map((reason) => make("p", { class: "problem" }, `not taken: ${reason}`)));
  instead.remove();
  await entry.show(job);
  wait();
}

function entryOf(job) {
  let entry = entries.get(job.id);
  if (!entry) {
    entry = new JobEntry(job.id);
    entries.set(job.id, entry);
    entry.root.dataset.created = job.created;
    at("jobs").insertBefore(entry.root, [...at("jobs").children].find(({ dataset }) => dataset.created < job.created) ?? null);
  }
  return entry;
}

class JobEntry {
  constructor(id) {
    this.id = id;
    this.job = null;
    this.isOwn = false; // whose files are shown without being asked for
    this.name = make("span", { class: "name" }, "…");
    this.state = make("span", { class: "state" });
    this.bar = make("progress", { max: "1" });
    this.cancel = make("button", { type: "button", class: "quiet", click: () => this.#cancel() }, "Cancel");
    this.refused = make("div");
    this.fates = make("ul");
    this.files = make("details", { toggle: () => this.files.open && this.#list() }, make("summary", {}, "Files"), this.fates);
    this.wrong = make("div", { role: "alert" });
    this.root = make("li", {}, this.name, this.state, this.cancel, this.bar, this.wrong, this.refused, this.files);
  }

  // Draws what is told of it.
  async show(job) {
    const [isNew, isOver] = [!this.job, job.status !== "running"];
    const isEnd = isOver && (isNew ? this.isOwn : this.job.status === "running");
    if (!isNew && isSame(this.job, job)) return;
    this.job = job;
    this.state.textContent = [wordsOf(job), when(job.created)].join(" · ");
    this.bar.value = doneOf(job);
    this.bar.hidden = this.cancel.hidden = isOver;
    if (isNew || isEnd || this.files.open) await this.#list();
    if (isEnd) await Promise.all([listDocuments(), refreshCollections()]);
  }

  async #list() {
    try {
      const { items, next } = await get(`v1/jobs/${this.id}?limit=${LISTED}`);
      const written = new Set(items.map(({ document }) => document));
      const shown = items.filter(({ file, detail }) => !file || detail || !written.has(file)); // a file is one document, mostly
      const names = shown.map(({ file, document }) => file || document);
      this.name.textContent = names.length > 1 ? `${names[0]} and ${plural(shown.length - 1, "other")}${next ? " or more" : ""}` : names[0] ?? "nothing";
      this.cancel.setAttribute("aria-label", `Cancel ${this.name.textContent}`);
      this.bar.setAttribute("aria-label", `Progress of ${this.name.textContent}`);
      this.fates.replaceChildren(...shown.map(fateOf), next ? make("li", { class: "hint" }, `The first ${LISTED} are shown.`) : "");
      if (this.isOwn && (shown.length > 1 || shown.some(isTold))) [this.files.open, this.isOwn] = [true, false];
    } catch (error) {
      this.#tell(error);
    }
  }

  async #cancel() {
    try {
      await this.show(await (await call("DELETE", `v1/jobs/${this.id}`)).json());
    } catch (error) {
      this.#tell(error);
    }
  }

  #tell(error) {
    if (!(error instanceof Problem)) throw error;
    this.wrong.replaceChildren(problem(error));
  }
}

// As far as a job tells of itself, not of its catalog.
const ofItself = (job) => JSON.stringify({ ...job, change: "", search_waits: "" });
const isSame = (one, other) => ofItself(one) === ofItself(other);

const sentence = (words) => (words ? `Search by meaning waits: ${words}.` : "");

// Did it fail, or was it read in part?
const isTold = ({ state, file, detail }) => state === "failed" || Boolean(file && detail);

function fateOf(item) {
  const { file, document, collection, state, chunks, stored, detail } = item;
  const name = file || document;
  const reason = detail.startsWith(`${name}: `) ? detail.slice(name.length + 2) : detail;
  const done = file ? (detail ? "read in part" : "read") : `${plural(chunks, "chunk")} in ${collection}`;
  const fate = state === "failed" ? "refused" : state === "ready" ? done : `${FATES[state]}${chunks ? `, ${stored} of ${plural(chunks, "chunk")}` : ""}`;
  return make("li", { class: isTold(item) ? "problem" : "" }, make("b", {}, name), ` ${fate}`, reason ? `: ${reason}` : "");
}

function wordsOf({ status, chunks, stored, over_budget: over, unsupported }) {
  const beside = [over ? `${over} over budget` : "", unsupported ? `${unsupported} without a cache` : ""].filter(Boolean);
  const kept = chunks ? `${stored} of ${plural(chunks, "chunk")} stored` : "";
  return [ENDS[status] ?? status, kept, ...beside].filter(Boolean).join(", ");
}

// Of the uploads that are over; within the first ones, of the chunks.
function doneOf({ uploads, chunks, stored, over_budget: over, unsupported }) {
  const all = Object.values(uploads).reduce((sum, each) => sum + each, 0);
  const open = (uploads.waiting ?? 0) + (uploads.computing ?? 0);
  const ofChunks = chunks ? (stored + over + unsupported) / chunks : 0;
  return all === 1 ? ofChunks : (all - open) / all;
}
