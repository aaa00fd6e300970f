"""Cuts a text into sentences, knowing abbreviations, and solid blocks; tears too long ones into lines and words."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from retriever.chunking.blocks import BorderLevel, TextBlock, blocks, lines
from retriever.chunking.borders import thin_borders


class Kind(IntEnum):
    """What a piece is, which says what it is torn into: solids and sentences into lines, lines into runs of words."""

    SOLID = 0
    SENTENCE = 1
    LINE = 2
    RUN = 3
    CHARACTER = 4


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A stretch of a text; `level` is that of the border before it."""

    start: int
    end: int
    level: int
    kind: Kind


# A run of signs is looked at once: behind its first sign no match begins.
_SENTENCE = re.compile(r"""(?<![.!?…])[.!?…]++["'”’»)\]]*+\s++|(?<![。！？])[。！？]++["'」』”’）]*+\s*+""")
_ABBREVIATION = re.compile(
    r"(?:\b(?:[^\W\d_]|Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|cf|No|Fig|Eq|Sec|Vol|pp|approx|ca|Nr|bzw|Abs)|e\.g|i\.e|z\.B)$"
)
_LONGEST_ABBREVIATION = 8
_WORD = re.compile(r"\w")
STRETCH = 1 << 17  # characters, some milliseconds


def pieces(text: str) -> Iterator[TextPiece]:
    """The text as solid blocks and sentences."""
    block = TextBlock(0, BorderLevel.BLOCK)  # what white space alone is
    for following in blocks(text):
        if following.start:
            yield from _of_block(text, block, end=following.start)
        block = following
    yield from _of_block(text, block, end=len(text))


def _of_block(text: str, block: TextBlock, *, end: int) -> Iterator[TextPiece]:
    start, level = block.start, block.level
    if block.is_solid:
        yield TextPiece(start, end, level, Kind.SOLID)
        return
    for match in _signs(text, start, end=end):
        if match.end() < end and not _is_abbreviation(text, match):
            yield TextPiece(start, match.end(), level, Kind.SENTENCE)
            start, level = match.end(), BorderLevel.SENTENCE
    yield TextPiece(start, end, level, Kind.SENTENCE)


def _signs(text: str, start: int, *, end: int) -> Iterator[re.Match[str]]:
    """What ends sentences, looked for in one stretch after the other: a search lets no other thread run."""
    while start < end:
        stop = min(start + STRETCH, end)
        word = _WORD.search(text, stop, min(stop + STRETCH, end))  # which no match goes across
        stop = word.end() if word else min(stop + STRETCH, end)
        yield from _SENTENCE.finditer(text, start, stop)
        start = stop


def _is_abbreviation(text: str, sign: re.Match[str]) -> bool:
    if text[sign.start()] != ".":
        return False
    before = text[max(0, sign.start() - _LONGEST_ABBREVIATION) : sign.start()]
    return text[sign.end()].islower() or _ABBREVIATION.search(before) is not None


def tear(text: str, piece: TextPiece, *, longest: int, radius: int) -> Iterator[TextPiece]:
    """What a piece falls into, and this again where it has more than `longest` characters; runs are left at that."""
    rung = piece
    torn = [piece]
    while torn == [rung] and rung.kind < Kind.CHARACTER and rung.end - rung.start > 1:
        rung = TextPiece(rung.start, rung.end, rung.level, Kind(max(rung.kind + 1, Kind.LINE)))
        torn = list(_between(_borders(text, rung, radius=radius), rung))
    for part in torn:
        if part.kind < Kind.RUN and part.end - part.start > longest:
            yield from tear(text, part, longest=longest, radius=radius)
        else:
            yield part


def _between(borders: Iterator[tuple[int, int]], rung: TextPiece) -> Iterator[TextPiece]:
    start, level = rung.start, rung.level
    for place, next_level in borders:
        yield TextPiece(start, place, level, rung.kind)
        start, level = place, next_level
    yield TextPiece(start, rung.end, level, rung.kind)


def _borders(text: str, rung: TextPiece, *, radius: int) -> Iterator[tuple[int, int]]:
    if rung.kind == Kind.LINE:
        return _lines(text, rung.start, end=rung.end)
    if rung.kind == Kind.RUN:
        return iter(thin_borders(text, rung.start, end=rung.end, radius=radius))
    return (
        (place, BorderLevel.SPACE if text[place].isspace() else BorderLevel.CHARACTER)
        for place in range(rung.start + 1, rung.end)
    )


def _lines(text: str, start: int, *, end: int) -> Iterator[tuple[int, int]]:
    is_behind_blank = False
    for begin, stop in lines(text, start, end=end):
        is_blank = text[begin:stop].isspace()
        if not is_blank and begin > start:
            yield begin, BorderLevel.BLANK if is_behind_blank else BorderLevel.LINE
        is_behind_blank = is_blank
