// The part that puts in: files by picker and by drop, a text, the sample. Lists no documents and no jobs.

import { call, Problem } from "./api.js";
import { at, make, plural, problem } from "./dom.js";
import { showJob } from "./jobs.js";
import { COLLECTION, DOCUMENT } from "./samples.js";

const MOST_FILES = 200; // of one request
const MOST_BYTES = 32_000_000;

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
    send(group.length === 1 ? group[0].name : plural(group.length, "file"), { body });
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
  const isSafe = await send(title.trim() || id.trim() || "a text", { json: { documents: [document], collection: chosen() } });
  if (isSafe) at("paste").reset();
}

function putSample() {
  return send("the sample", { json: { documents: [DOCUMENT], collection: COLLECTION } });
}

// Sends, and shows the job that came of it. Was it taken?
async function send(name, sent) {
  const state = make("span", { class: "state" }, "sending…");
  const instead = make("li", { "data-created": Date.now() / 1000 }, make("span", { class: "name" }, name), state);
  at("jobs").prepend(instead);
  at("no-jobs").textContent = "";
  try {
    const { job_id: job, refused } = await (await call("POST", "v1/documents", sent)).json();
    await showJob(job, { refused, instead });
    return true;
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    state.textContent = "not taken";
    const each = error.fields.map(({ message }) => make("p", { class: "problem" }, message)); // of files, one by one
    instead.append(make("div", { role: "alert" }, ...(each.length ? each : [problem(error)])));
    return false;
  }
}
