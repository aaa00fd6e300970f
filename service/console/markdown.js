// A safe part of Markdown as elements: what a model writes becomes text nodes, never HTML, and loads nothing.

import { make } from "./dom.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)\s*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}(?:-(?:\s*-){2,}|\*(?:\s*\*){2,}|_(?:\s*_){2,})\s*$/;
const ITEM = /^(\s*)([-*+]|(\d{1,9})[.)])\s+(.*)$/;
const QUOTE = /^ {0,3}> ?/;
const ROW = /^\s*\|.*\|\s*$/;
const DASHES = /^\s*\|(?:\s*:?-+:?\s*\|)+\s*$/;
// Code, bold, italics, a link, an address: whichever comes first.
const INLINE = /(`+)(.+?)\1(?!`)|\*\*(?=\S)(.+?\S|\S)\*\*|(?<![*\w])[*_](?=[^\s*_])([^*_\n]*[^\s*_])[*_](?![*\w])|\[([^\][\n]+)\]\((https?:\/\/[^\s()<>]+)\)|(https?:\/\/[^\s<>()"'`]*[^\s<>()"'`.,;:!?])/su;

// Draws a text that grows: only blocks that have changed are drawn anew, so that a reader hears no word twice.
export function drawMarkdown(place, text) {
  const blocks = blocksOf(text.split("\n"));
  blocks.forEach(({ source, draw }, number) => {
    const drawn = place.children[number];
    if (drawn?.source === source) return;
    const fresh = draw();
    fresh.source = source;
    if (drawn) drawn.replaceWith(fresh);
    else place.append(fresh);
  });
  while (place.children.length > blocks.length) place.lastChild.remove();
}

function blocksOf(lines) {
  const blocks = [];
  for (let at = 0; at < lines.length;) {
    const [end, draw] = blockAt(lines, at);
    if (draw) blocks.push({ source: lines.slice(at, end).join("\n"), draw });
    at = end;
  }
  return blocks;
}

// Where the block that begins here ends, and what draws it.
function blockAt(lines, at) {
  const line = lines[at];
  const until = (isOver) => {
    let end = at + 1;
    while (end < lines.length && !isOver(lines[end], end)) end += 1;
    return end;
  };
  if (!line.trim()) return [at + 1, null];
  const fence = FENCE.exec(line);
  if (fence) {
    const end = until((each) => each.trim().startsWith(fence[1]) && !each.trim().replaceAll(fence[1][0], ""));
    return [Math.min(end + 1, lines.length), () => make("pre", {}, make("code", {}, lines.slice(at + 1, end).join("\n")))];
  }
  const heading = HEADING.exec(line);
  if (heading) return [at + 1, () => make(`h${Math.min(6, heading[1].length + 2)}`, {}, ...inline(heading[2]))];
  if (RULE.test(line)) return [at + 1, () => make("hr")];
  if (QUOTE.test(line)) {
    const end = until((each) => !QUOTE.test(each));
    return [end, () => quote(lines.slice(at, end).map((each) => each.replace(QUOTE, "")))];
  }
  if (ITEM.test(line)) {
    const end = until((each, number) => !ITEM.test(each) && (!each.trim() ? !ITEM.test(lines[number + 1] ?? "") : !/^\s{2,}/.test(each)));
    return [end, () => list(lines.slice(at, end).filter((each) => each.trim()))];
  }
  if (ROW.test(line) && DASHES.test(lines[at + 1] ?? "")) {
    const end = until((each) => !ROW.test(each));
    return [end, () => table(lines.slice(at, end))];
  }
  const end = until((each) => !each.trim() || [FENCE, HEADING, QUOTE, ITEM, RULE].some((begins) => begins.test(each)));
  return [end, () => make("p", {}, ...inline(lines.slice(at, end).join("\n")))];
}

function quote(lines) {
  const place = make("blockquote");
  drawMarkdown(place, lines.join("\n"));
  return place;
}

// What is further in than the first item is its own list.
function list(lines) {
  const [, indent, , number] = ITEM.exec(lines[0]);
  const root = number === undefined ? make("ul") : make("ol", { start: number });
  for (let at = 0; at < lines.length;) {
    const [, , , , words] = ITEM.exec(lines[at]) ?? ["", "", "", "", lines[at]];
    let end = at + 1;
    while (end < lines.length && !(ITEM.exec(lines[end])?.[1].length <= indent.length)) end += 1;
    const inner = lines.slice(at + 1, end);
    const first = inner.findIndex((each) => ITEM.test(each));
    const more = first < 0 ? inner : inner.slice(0, first);
    root.append(make("li", {}, ...inline([words, ...more.map((each) => each.trim())].join("\n")), first < 0 ? null : list(inner.slice(first))));
    at = end;
  }
  return root;
}

function table(lines) {
  const cells = (line) => line.trim().slice(1, -1).split(/(?<!\\)\|/).map((each) => each.trim().replaceAll("\\|", "|"));
  const row = (line, tag) => make("tr", {}, ...cells(line).map((each) => make(tag, {}, ...inline(each))));
  return make("table", { class: "rows" },
    make("thead", {}, row(lines[0], "th")), make("tbody", {}, ...lines.slice(2).map((each) => row(each, "td"))));
}

function inline(text) {
  const parts = [];
  for (let rest = text; rest;) {
    const found = INLINE.exec(rest);
    parts.push(rest.slice(0, found?.index));
    if (!found) break;
    const [whole, ticks, code, bold, italic, words, link, address] = found;
    if (ticks) parts.push(make("code", {}, code.trim() || code));
    else if (bold) parts.push(make("strong", {}, ...inline(bold)));
    else if (italic) parts.push(make("em", {}, ...inline(italic)));
    else parts.push(make("a", { href: link ?? address, title: link ?? address, target: "_blank", rel: "noopener noreferrer" }, words ?? address));
    rest = rest.slice(found.index + whole.length);
  }
  return parts.filter((part) => part !== "");
}
