// Starts the page: its parts by the address, the key, and whether the service is there. Asks no question itself.

import { call, get, key, keyOfAnotherTab, listeners, Problem } from "./api.js";
import { startAsking } from "./ask.js";
import { refreshCollections } from "./collections.js";
import { listDocuments, showDocument, startDocuments } from "./documents.js";
import { at, count } from "./dom.js";
import { listJobs } from "./jobs.js";
import { startRules } from "./rules.js";
import { showStats, startStats } from "./stats.js";
import { startUploads } from "./uploads.js";

const PARTS = ["ask", "documents", "stats"];
const SOON_MS = 1000; // between two looks while it is not ready
const LATER_MS = 30_000;
const LINK = /^#once=([\w-]+)$/; // what stands behind the # goes to no server, and into no log

let isOpen = false; // does the service let us in, with this key or without one?
let waiting = 0;
let looks = 0; // only the latest look counts
let refusal = ""; // why a link did not let us in

function part() {
  const [name, ...rest] = location.hash.slice(1).split("/");
  return { name: PARTS.includes(name) ? name : PARTS[0], id: decoded(rest.join("/")) };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function showPart() {
  const { name, id } = part();
  for (const each of PARTS) at(each).hidden = each !== name;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `kvweave: ${name}`;
  fill(name, id);
}

function fill(name, id) {
  if (!isOpen) return;
  if (name === "stats") showStats();
  if (name === "documents") {
    showDocument(id);
    if (!id) listDocuments();
    listJobs();
  }
}

function tell(kind, words) {
  at("connection").dataset.kind = kind;
  const place = at("connection").querySelector(".words");
  if (place.textContent !== words) place.textContent = words;
}

// Is it ready, and does it know the key? Looks again until both are so, and now and then after that.
async function look() {
  clearTimeout(waiting);
  looks += 1;
  const number = looks;
  const { kind, words } = await found();
  if (number !== looks) return;
  tell(kind, words);
  const isNew = kind === "ready" && !isOpen;
  isOpen = kind === "ready";
  if (isNew) {
    refreshCollections().catch(() => {});
    showPart();
  }
  if (kind !== "locked") waiting = setTimeout(whenSeen, kind === "ready" ? LATER_MS : SOON_MS);
}

// A request met what the last look did not: one more look, and not one for each request of that look.
function lookAgain() {
  if (!isOpen) return;
  isOpen = false;
  look();
}

function whenSeen() {
  if (!document.hidden) look();
}

async function found() {
  try {
    await get("readyz");
    const { data } = await get("v1/models");
    showKey({ isNeeded: false });
    const lexical = data[0].search === "lexical" ? "; search by words alone" : "";
    const search = data[0].search_waits ? `${lexical}; search by meaning waits: ${data[0].search_waits}` : lexical;
    return { kind: "ready", words: `ready: ${data[0].id} (${count(data[0].max_model_len)} tokens)${search}` };
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    if (error.status === 401) {
      showKey({ isNeeded: true });
      return { kind: "locked", words: key.get() ? "the key is refused" : "a key is needed" };
    }
    return { kind: error.status === 503 ? "loading" : "gone", words: error.message };
  }
}

function showKey({ isNeeded }) {
  const isKept = key.get() !== "";
  at("key-forget").disabled = !isKept;
  if (isNeeded) {
    at("key-note").textContent = refusal || (isKept ? "The service does not know this key, or it was revoked." : "The service asks for a key.");
    openKey(true);
  } else {
    at("key-note").textContent = isKept ? "The service has taken the key." : "No key is needed: the service runs without authentication.";
    openKey(false);
  }
}

function openKey(isShown) {
  const panel = at("key-panel");
  if (panel.hidden !== isShown) return;
  panel.hidden = !isShown;
  at("key-open").setAttribute("aria-expanded", String(isShown));
  if (isShown) at("key-field").focus();
}

// With the key that a link stands for, that another tab has, or that was kept.
async function enter() {
  const [, token] = LINK.exec(location.hash) ?? [];
  if (token) {
    history.replaceState(null, "", location.pathname + location.search);
    try {
      const { key: found } = await (await call("POST", "console/key", { json: { token } })).json();
      useKey(found);
      return;
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      refusal = error.message;
    }
  }
  if (!key.get()) key.set(await keyOfAnotherTab());
  look();
}

function useKey(text) {
  refusal = "";
  key.set(text);
  at("key-field").value = "";
  at("key-note").textContent = "";
  isOpen = false;
  look();
}

function start() {
  startAsking();
  startDocuments();
  startUploads();
  startRules();
  startStats();
  at("key-open").addEventListener("click", () => openKey(at("key-panel").hidden));
  at("key-forget").addEventListener("click", () => useKey(""));
  at("key-panel").addEventListener("submit", (event) => {
    event.preventDefault();
    useKey(at("key-field").value.trim());
  });
  listeners.refused = listeners.unreachable = lookAgain;
  addEventListener("hashchange", () => (LINK.test(location.hash) ? enter() : showPart()));
  document.addEventListener("visibilitychange", whenSeen);
  showPart();
  enter();
}

start();
