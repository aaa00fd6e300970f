// A passage for people: the heading that it stands under, the place in it that speaks to a question, its words marked.

import { make } from "./dom.js";

const LETTER = "[\\p{L}\\p{N}]";
const COMMON = new Set(`a about all also an and any are as at be been but by can could did do does for from had has have how
 i if in into is it its me my no not of on one or our should so than that the their them there these they this those to was we
 were what when where which while who whom whose why will with would you your`.split(/\s+/));
const HEADING = /^#{1,6}\s+(.+?)\s*#*$/gmu;
const [BEFORE, BEHIND] = [60, 140]; // characters of a preview, beside the place that it shows

// Finds the words of a question that tell something, with their endings.
export function finder(question) {
  const words = question.match(new RegExp(`${LETTER}+`, "gu")) ?? [];
  const telling = [...new Set(words.map((word) => word.toLowerCase()))].filter((word) => !COMMON.has(word));
  const forms = telling.map((word) => (word.length < 4 ? word : `${word}${LETTER}{0,2}`));
  return forms.length ? new RegExp(`(?<!${LETTER})(?:${forms.join("|")})(?!${LETTER})`, "giu") : null;
}

// The text in nodes, with what the finder finds marked.
export function marked(text, found) {
  const parts = [];
  let end = 0;
  for (const match of found ? text.matchAll(found) : []) {
    parts.push(text.slice(end, match.index), make("mark", {}, match[0]));
    end = match.index + match[0].length;
  }
  return [...parts, text.slice(end)].filter((part) => part !== "");
}

// The place in a text where most of the question's words stand together.
function spotOf(text, found) {
  const places = found ? [...text.matchAll(found)].map((match) => match.index) : [];
  const near = (place) => places.filter((each) => each >= place && each < place + BEHIND).length;
  return places.reduce((best, place) => (near(place) > near(best) ? place : best), places[0] ?? 0);
}

// The heading that this place stands under, unless it is the title of the document.
export function headingOf(text, title, found) {
  const spot = spotOf(text, found);
  const headings = [...text.matchAll(HEADING)].filter((match) => match[1] !== title);
  return (headings.findLast(({ index }) => index <= spot) ?? headings[0])?.[1] ?? "";
}

// What stands around this place, on one line.
export function previewOf(text, found) {
  const spot = spotOf(text, found);
  const begin = spot <= BEFORE ? 0 : text.slice(0, spot - BEFORE).search(/\S*$/u);
  const cut = text.slice(begin, spot + BEHIND);
  const line = cut.replace(HEADING, " ").replace(/\s+/gu, " ").trim();
  return `${begin ? "…" : ""}${line}${spot + BEHIND < text.trimEnd().length ? "…" : ""}`;
}
