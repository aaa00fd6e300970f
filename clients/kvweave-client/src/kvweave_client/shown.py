"""Answers for people: a text to print and HTML for a notebook, with the best of the sources. Knows no wire."""

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

SOURCES: Final = 5  # that are shown; the others are counted

Scores = Sequence[tuple[float, str]]  # of sources, with their names


def as_text(words: str, notes: Sequence[str], *, sources: Scores) -> str:
    """The answer, what is to be known of it, and its sources, best first, each in a line."""
    return "\n".join([words, *notes, *(f"  {line}" for line in _lines(sources))])


def as_html(words: str, notes: Sequence[str], *, sources: Scores) -> str:
    """The same for a notebook. Nothing of it is read as HTML."""
    noted = "".join(f"<p><em>{escape(note)}</em></p>" for note in notes)
    lines = "".join(f"<li>{escape(line)}</li>" for line in _lines(sources))
    return f"<p>{escape(words)}</p>{noted}<ul>{lines}</ul>"


def _lines(sources: Scores) -> Iterator[str]:
    best = sorted(sources, key=lambda source: -source[0])
    yield from (f"{score:.2f}  {name}" for score, name in best[:SOURCES])
    if len(best) > SOURCES:
        yield f"and {len(best) - SOURCES} more"
