// The part that asks: a question, its answer, and the same by full prefill beside it. Draws no answer itself.

import { Answer, policyOf } from "./answer.js";
import { events, Problem, problemIn } from "./api.js";
import { collections } from "./collections.js";
import { at, count, duration, make } from "./dom.js";
import { isFixed, POLICIES } from "./policies.js";
import { COLLECTION, NEIGHBORS, QUESTIONS } from "./samples.js";

const FULL = { policy: "full" };

let running = null; // what can be aborted
let last = null; // {asked, answer}: the last answer that came to its end

export function startAsking() {
  const form = at("ask-form");
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    ask();
  });
  at("question").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!running) form.requestSubmit();
  });
  at("ask-stop").addEventListener("click", () => running?.abort());
  at("ask-compare").addEventListener("click", () => form.reportValidity() && compare());
  at("policy").append(...Object.entries(POLICIES).map(([value, { label }]) => make("option", { value }, label ?? value)));
  at("policy").addEventListener("change", showPolicy);
  document.addEventListener("collections", showSamples);
  showPolicy();
}

function showPolicy() {
  const { value } = at("policy");
  at("policy-hint").textContent = POLICIES[value]?.hint ?? "As the service is set.";
  at("ratio").disabled = isFixed(value);
}

function showSamples() {
  const isThere = collections.some(({ name, documents }) => name === COLLECTION && documents);
  at("samples").hidden = !isThere;
  at("samples").replaceChildren("Try: ", ...QUESTIONS.map((question) =>
    make("button", { type: "button", class: "quiet", click: () => take(question) }, question)));
}

function take(question) {
  at("question").value = question;
  at("ask-collection").value = COLLECTION;
  at("neighbors").value = NEIGHBORS;
  at("question").focus();
}

// The request, as the form has it.
function asked() {
  const number = (id) => (at(id).value === "" ? undefined : Number(at(id).value));
  const blend = { policy: at("policy").value || undefined, ratio: at("ratio").disabled ? undefined : number("ratio") };
  return {
    question: at("question").value.trim(),
    collection: at("ask-collection").value || undefined,
    top_k: number("top-k"),
    neighbors: number("neighbors"),
    blend: blend.policy || blend.ratio !== undefined ? blend : undefined,
    sampling: { max_tokens: number("max-tokens") ?? 256 },
    stream: true,
  };
}

async function ask() {
  const wanted = asked();
  if (!wanted.question) return;
  judge("");
  await whileRunning(async (signal) => {
    await answered(wanted, signal);
  });
}

// By full prefill beside the last answer, if the form has not changed since; else both, one after the other.
async function compare() {
  const wanted = asked();
  if (!wanted.question) return;
  await whileRunning(async (signal) => {
    judge("Asking as the form says, then by full prefill…");
    const isLast = last && JSON.stringify(last.asked) === JSON.stringify(wanted);
    const one = isLast ? last.answer : await answered(wanted, signal);
    if (!one) {
      judge("");
      return;
    }
    const other = await answered({ ...wanted, blend: FULL }, signal, one);
    last = { asked: wanted, answer: one };
    judge(other ? weighed(one, other) : "");
  });
}

async function whileRunning(work) {
  running = new AbortController();
  enable(false);
  try {
    await work(running.signal);
  } finally {
    running = null;
    enable(true);
  }
}

function enable(isIdle) {
  const focused = document.activeElement;
  at("ask-go").disabled = at("ask-compare").disabled = !isIdle;
  at("ask-stop").disabled = isIdle;
  if (focused === at("ask-go") || focused === at("ask-compare")) at("ask-stop").focus();
  if (focused === at("ask-stop")) at("ask-go").focus();
}

// The answer, or null if it did not come to its end. It stands alone, or `beside` another.
async function answered(wanted, signal, beside = null) {
  const answer = new Answer(wanted.blend?.policy === "full" ? policyOf(FULL) : "Answer", wanted.question);
  at("ask-empty").hidden = true;
  at("answers").replaceChildren(...(beside ? [beside.root] : []), answer.root);
  at("answers").classList.toggle("two", beside !== null);
  try {
    for await (const [name, told] of events("POST", "v1/query", { json: wanted, signal })) {
      if (name === "error") throw problemIn(told);
      answer.hear(name, told);
    }
    if (!answer.done) throw new Problem("the answer broke off");
    last = { asked: wanted, answer };
    return answer;
  } catch (error) {
    if (error.name === "AbortError") answer.stop();
    else if (error instanceof Problem) answer.fail(error);
    else throw error;
    return null;
  }
}

function judge(words) {
  at("verdict").textContent = words;
  at("verdict").hidden = !words;
}

// What the two are worth beside each other; their times are drawn to one scale.
function weighed(one, other) {
  const longest = Math.max(one.total, other.total);
  for (const each of [one, other]) each.scale(longest);
  const first = (answer) => answer.done.report.timings_ms.first_token;
  const computed = ({ usage }) => usage.prompt_tokens - usage.reused_tokens;
  const told = [one.done.answer === other.done.answer ? "Both answers are equal." : "The answers differ."];
  if (first(one) && first(other)) {
    const times = first(other) / first(one);
    const how = times >= 1 ? `${times.toFixed(1)} times sooner` : `${(1 / times).toFixed(1)} times later`;
    told.push(`The first token came ${how}: ${duration(first(one))} against ${duration(first(other))} by full prefill.`);
  }
  told.push(`Of the prompt, ${count(computed(one))} tokens were computed, against ${count(computed(other))}.`);
  if (first(one) > first(other)) told.push("Where prompts are short, reading and fusing can take longer than computing.");
  return told.join(" ");
}
