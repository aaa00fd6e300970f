// The names of the collections, wherever the page lets one choose. Knows no documents.

import { get } from "./api.js";
import { at, make } from "./dom.js";

export let collections = [];

export async function refreshCollections() {
  collections = (await get("v1/collections")).collections;
  for (const select of document.querySelectorAll("select[data-collections]")) {
    const chosen = select.value;
    const options = collections.map(({ name, documents }) => make("option", { value: name }, `${name} (${documents})`));
    select.replaceChildren(select.options[0], ...options);
    select.value = collections.some(({ name }) => name === chosen) ? chosen : "";
  }
  at("collection-names").replaceChildren(...collections.map(({ name }) => make("option", { value: name })));
  document.dispatchEvent(new CustomEvent("collections"));
}
