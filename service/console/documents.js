// The part that lists documents, a page at a time, shows the chunks of one, and deletes. Puts nothing in.

import { call, get, Problem } from "./api.js";
import { tierOf } from "./answer.js";
import { refreshCollections } from "./collections.js";
import { at, make, plural, problem, size, when } from "./dom.js";

const PAGE = 50;

let starts = [""]; // where each page up to this one begins

export function startDocuments() {
  at("list-refresh").addEventListener("click", () => listDocuments());
  at("list-collection").addEventListener("change", () => listDocuments([""]));
  at("list-back").addEventListener("click", () => listDocuments(starts.slice(0, -1)));
  at("list-next").addEventListener("click", () => listDocuments([...starts, at("list-next").value]));
}

const pathOf = (id) => `v1/documents/${encodeURIComponent(id)}`;

export async function listDocuments(pages = starts) {
  const query = new URLSearchParams({ limit: PAGE });
  if (pages.at(-1)) query.set("after", pages.at(-1));
  if (at("list-collection").value) query.set("collection", at("list-collection").value);
  await reporting(at("list-problem"), async () => {
    const { documents, next } = await get(`v1/documents?${query}`);
    if (!documents.length && pages.length > 1) {
      await listDocuments(pages.slice(0, -1)); // the last of this page was deleted
      return;
    }
    starts = pages;
    at("list-rows").replaceChildren(...documents.map(rowOf));
    at("list-next").value = next ?? "";
    at("list-next").disabled = !next;
    at("list-back").disabled = starts.length === 1;
    const first = PAGE * (starts.length - 1);
    at("list-place").textContent = documents.length ? `${first + 1} to ${first + documents.length}` : "";
    at("list-empty").hidden = documents.length > 0;
    at("list-empty").textContent = at("list-collection").value ? "This collection has no documents." : "There are no documents yet.";
    document.dispatchEvent(new CustomEvent("listed", { detail: documents.length }));
  });
}

function rowOf({ id, title, collection, chunks, updated }) {
  return make("tr", {},
    make("td", { "data-name": "document" },
      make("a", { href: `#documents/${encodeURIComponent(id)}` }, title || id), title ? make("small", {}, id) : null),
    make("td", { "data-name": "collection" }, collection),
    make("td", { class: "number", "data-name": "chunks" }, String(chunks)),
    make("td", { "data-name": "changed" }, when(updated)),
    make("td", { class: "actions" },
      make("button", { type: "button", class: "quiet", "aria-label": `Delete ${id}`, click: () => remove(id, chunks) }, "Delete")));
}

async function remove(id, chunks) {
  if (!(await confirmed(`Delete ${id}, with its ${chunks === 1 ? "chunk and the chunk's cache" : `${plural(chunks, "chunk")} and their caches`}?`))) return;
  await reporting(at("list-problem"), async () => {
    const told = await (await call("DELETE", pathOf(id))).json();
    const kept = told.chunks_kept.length ? `, ${plural(told.chunks_kept.length, "chunk")} kept that other documents hold` : "";
    const rest = told.done ? "" : "; the store has not confirmed all of it yet";
    at("list-note").textContent = `${id} is deleted: ${plural(told.chunks_removed.length, "chunk")} gone${kept}${rest}.`;
    if (location.hash.startsWith("#documents/")) location.hash = "#documents";
    await Promise.all([listDocuments(), refreshCollections()]);
    at("list-refresh").focus(); // the button that was pressed is gone
  });
}

function confirmed(words) {
  const dialog = at("confirm");
  at("confirm-words").textContent = words;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

// One document in the place of the list; without an id the list again.
export async function showDocument(id) {
  const [place, list] = [at("document-one"), at("document-list")];
  list.hidden = Boolean(id);
  place.hidden = !id;
  place.replaceChildren();
  if (!id) return;
  const wrong = make("div", { role: "alert" });
  const about = make("div");
  const chunks = make("ol", { class: "chunks", "aria-label": "Chunks" });
  const more = make("button", { type: "button", hidden: true, click: () => moreChunks() }, "More chunks");
  const back = make("a", { href: "#documents" }, "← All documents");
  place.replaceChildren(make("p", { class: "bar" }, back), wrong, about, chunks, more);
  let after = 0;

  async function moreChunks() {
    await reporting(wrong, async () => {
      const page = await get(`${pathOf(id)}/chunks?limit=${PAGE}&after=${after}`);
      chunks.append(...page.chunks.map(chunkOf));
      after = page.next;
      more.hidden = page.next === null;
    });
  }

  await reporting(wrong, async () => {
    about.replaceChildren(...headOf(await get(pathOf(id))));
    await moreChunks();
  });
}

function headOf({ id, title, collection, chunks, metadata, created, updated }) {
  const named = Object.keys(metadata).length ? make("pre", {}, JSON.stringify(metadata, null, 1)) : null;
  const times = created === updated ? `put in ${when(created)}` : `put in ${when(created)}, changed ${when(updated)}`;
  return [
    make("div", { class: "bar" }, make("h2", {}, title || id),
      make("button", { type: "button", "aria-label": `Delete ${id}`, click: () => remove(id, chunks) }, "Delete")),
    make("p", { class: "hint" }, `${id} · collection ${collection} · ${plural(chunks, "chunk")} · ${times}`),
    named ? make("details", {}, make("summary", {}, "Metadata"), named) : "",
  ];
}

function chunkOf({ chunk_id: id, place, name, text, page, state, bytes, tier }) {
  const told = [name, page === null ? "" : `page ${page}`, state === "stored" ? size(bytes) : ""].filter(Boolean);
  return make("li", {},
    make("details", {},
      make("summary", {},
        make("span", { class: "place" }, String(place + 1)),
        make("span", { class: "name" }, text),
        make("span", { class: `badge ${state === "stored" ? tierOf(tier) : ""}` }, state === "stored" ? tier : state),
        make("span", { class: "fate" }, told.join(" · "))),
      make("p", { class: "passage" }, text),
      make("p", { class: "hint" }, `chunk ${id} · ${state}`)));
}

async function reporting(place, work) {
  try {
    await work();
    place.replaceChildren();
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    place.replaceChildren(problem(error));
  }
}
