"""Answers for people: a text to print and HTML for a notebook, with the best of the sources. Knows no wire."""

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final, Protocol

SOURCES: Final = 5  # that are shown; the others are counted


class ShownSource(Protocol):
    """What is shown of a source."""

    @property
    def title(self) -> str: ...
    @property
    def document_id(self) -> str: ...
    @property
    def score(self) -> float: ...


class ShownReport(Protocol):
    """What is shown of a report."""

    @property
    def notes(self) -> tuple[str, ...]: ...


class ShownAnswer(Protocol):
    """What is shown of an answer, besides its words."""

    @property
    def sources(self) -> Sequence[ShownSource]: ...
    @property
    def report(self) -> ShownReport: ...


def as_text(words: str, answer: ShownAnswer) -> str:
    """The answer, what is to be known of it, and its sources, best first, each in a line."""
    return "\n".join([words, *answer.report.notes, *(f"  {line}" for line in _lines(answer.sources))])


def as_html(words: str, answer: ShownAnswer) -> str:
    """The same for a notebook. Nothing of it is read as HTML."""
    notes = "".join(f"<p><em>{escape(note)}</em></p>" for note in answer.report.notes)
    lines = "".join(f"<li>{escape(line)}</li>" for line in _lines(answer.sources))
    return f"<p>{escape(words)}</p>{notes}<ul>{lines}</ul>"


def _lines(sources: Sequence[ShownSource]) -> Iterator[str]:
    best = sorted(sources, key=lambda source: -source.score)
    for source in best[:SOURCES]:
        name = (
            source.document_id if source.title in ("", source.document_id) else f"{source.title}, {source.document_id}"
        )
        yield f"{source.score:.2f}  {name}"
    if len(best) > SOURCES:
        yield f"and {len(best) - SOURCES} more"
