"""HTML files: their character set and what becomes of the page. The parser runs in a process of its own."""

import re
from dataclasses import replace
from pathlib import PurePath

from retriever.documents import Draft
from retriever.readers.decode import decode
from retriever.readers.markdown import find_title
from retriever.readers.reading import Reading, ReadingProblem
from retriever.readers.serve import Findings
from retriever.readers.worker import ask

_DECLARED_WITHIN = 4096
_CHARSET = re.compile(rb"""<meta\s[^>]{0,200}?charset\s*=\s*["']?([A-Za-z0-9_:.-]{1,40})""", re.IGNORECASE)


def read_html(name: str, content: bytes) -> Reading:
    """One draft in Markdown: headings, lists, tables and code keep their form, links are their text."""
    declared = _CHARSET.search(content[:_DECLARED_WITHIN])
    page = decode(content, declared=declared[1].decode() if declared else "")
    return _reading(name, ask("retriever.readers.parse_html", page.encode("utf-8")))


def _reading(name: str, answer: Findings) -> Reading:
    text = "".join(answer.pages).strip("\n")
    problems = tuple(ReadingProblem(name, reason) for reason in answer.problems)
    if text and not text.isspace():
        return Reading((Draft(text, title=answer.title or find_title(text) or PurePath(name).stem),), problems)
    reading = Reading(problems=problems)
    return (
        reading
        if problems
        else replace(reading, problems=(ReadingProblem(name, "the page has no text: leave it out"),))
    )
