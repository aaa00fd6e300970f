// Speaks HTTP with the service: the key, problems, JSON and server-sent events. Knows nothing of the page.

const BASE = new URL("../", import.meta.url); // so that it works behind a path prefix, too
const KEPT = "kvweave.key";
const ASKED = "who has the key?";
const TOLD_WITHIN_MS = 200;

let held = "";
try {
  held = sessionStorage.getItem(KEPT) ?? "";
} catch {
  // a browser that keeps nothing: the key lives as long as this page
}

export const key = {
  get: () => held,
  set(text) {
    held = text;
    try {
      if (text) sessionStorage.setItem(KEPT, text);
      else sessionStorage.removeItem(KEPT);
    } catch {
      // as above
    }
  },
};

// Tabs of one browser tell each other the key while one of them has it: it is kept nowhere else.
const tabs = new BroadcastChannel(`${KEPT} ${BASE.pathname}`);
tabs.addEventListener("message", ({ data }) => {
  if (data === ASKED && held) tabs.postMessage({ key: held });
});

export function keyOfAnotherTab() {
  return new Promise((resolve) => {
    tabs.addEventListener("message", ({ data }) => data.key && resolve(data.key));
    setTimeout(() => resolve(""), TOLD_WITHIN_MS);
    tabs.postMessage(ASKED);
  });
}

export class Problem extends Error {
  constructor(message, { status = 0, requestId = "", fields = [] } = {}) {
    super(message);
    this.status = status;
    this.requestId = requestId;
    this.fields = fields;
  }
}

// Told of every 401, and of every request that did not reach the service.
export const listeners = { refused: () => {}, unreachable: () => {} };

// The response, if it succeeded; else throws a Problem. `json` is sent as such, `body` as it is.
export async function call(method, path, { json, body, signal } = {}) {
  const headers = new Headers();
  if (held && !/^[\x21-\x7e]+$/.test(held)) throw new Problem("this is no key: a key has letters, digits, - and _ only");
  if (held) headers.set("Authorization", `Bearer ${held}`);
  if (json !== undefined) headers.set("Content-Type", "application/json");
  const sent = json === undefined ? body : JSON.stringify(json);
  let response;
  try {
    response = await fetch(new URL(path, BASE), { method, headers, body: sent, signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    listeners.unreachable();
    throw new Problem(`the service does not answer at ${BASE.href}: is it running?`);
  }
  if (response.ok) return response;
  if (response.status === 401) listeners.refused();
  throw await problemOf(response);
}

export const get = async (path, options) => (await call("GET", path, options)).json();

// Events as [name, content], as they come.
export async function* events(method, path, options) {
  const response = await call(method, path, options);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let unread = "";
  let isOver = false;
  try {
    for (;;) {
      const { value, done } = await reader.read();
      isOver = done;
      if (done) return;
      const blocks = (unread + value).split("\n\n");
      unread = blocks.pop();
      for (const block of blocks) {
        const event = parsed(block);
        if (event) yield event;
      }
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("the connection broke before the end");
  } finally {
    if (!isOver) reader.cancel().catch(() => {});
  }
}

// What the event `error` tells.
export const problemIn = (told) =>
  new Problem(told.detail, { status: told.status, requestId: told.request_id, fields: told.errors });

function parsed(block) {
  let name = "message";
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) name = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5));
  }
  return data.length ? [name, JSON.parse(data.join("\n"))] : null;
}

async function problemOf(response) {
  const { status } = response;
  const requestId = response.headers.get("x-request-id") ?? "";
  let told = {};
  try {
    told = await response.json();
  } catch {
    // a proxy's page, or nothing
  }
  const message = told.detail ?? told.error?.message ?? `the answer was ${status} ${response.statusText}`;
  return new Problem(String(message), { status, requestId: told.request_id ?? requestId, fields: told.errors ?? [] });
}
