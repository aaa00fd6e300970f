"""Takes what leads elsewhere out of Markdown: links in a row that stand alone. Tells a licence's comment.

Prose is never among them: whatever holds a word outside of links stays, and so do few links and long ones.
"""

import re
from collections.abc import Iterator

from retriever.readers.fences import Fences

_LEAST = 3  # links in a row; fewer may be what a sentence before them speaks of
_WORDS = 10  # of a link at most, on the average; longer ones tell something
_LICENCE = re.compile(r"copyright|licen[cs]e|SPDX-|all rights reserved", re.IGNORECASE)
_LINE = re.compile(r"[^\n]*+\n|[^\n]++")
_LETTER = re.compile(r"[^\W\d_]")
_TEXT = re.compile(r" {0,3}(?:#{1,6}\s|`{3}|~{3})")  # whatever is in a heading or a fence


def without_link_lists(text: str, link: re.Pattern[str]) -> str:
    """The text without runs of links. `link`: what one is, its words being its last group that matched."""
    kept: list[str] = []
    at = 0  # behind the last run that went
    start, links, words = 0, 0, 0  # of the run at hand
    for first, last in _blocks(text) if link.search(text) else ():
        found = _links(text[first:last], link)
        end = last if found else first
        start, links, words = (start if links else first), links + len(found), words + sum(found)
        if not found or last == len(text):
            if links >= _LEAST and words <= _WORDS * links:
                kept.append(text[at:start])
                at = end
            links = words = 0
    return "".join([*kept, text[at:]]) if kept else text


def is_licence(comment: str) -> bool:
    """Does the comment at a file's head tell under what terms it is given?"""
    return _LICENCE.search(comment) is not None


def _links(block: str, link: re.Pattern[str]) -> list[int]:
    """The words of each link of a block that is nothing but links; none for any other."""
    found = [len((each[each.lastindex or 0] or "").split()) for each in link.finditer(block)]
    return [] if not found or _TEXT.match(block) or _LETTER.search(link.sub("", block)) else found


def _blocks(text: str) -> Iterator[tuple[int, int]]:
    """Where each begins and ends that blank lines part, with these behind it; a fence is one block."""
    start, fences, is_behind_blank = 0, Fences(), False
    for found in _LINE.finditer(text):
        line = found[0]
        if is_behind_blank and not fences.mark and not line.isspace():
            yield start, found.start()
            start = found.start()
        fences.holds(line)
        is_behind_blank = line.isspace()
    yield start, len(text)
