"""Finds the blocks of a text as Markdown has them, and how good for a cut each border is. Knows no tokens, no budget.

Every pattern consumes what it has looked at and every row is visited once, so hostile texts take linear time.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum


class BorderLevel(IntEnum):
    """How good a place for a cut a border is; greater is better. A heading of depth n has HEADING + 6 - n."""

    BEHIND_HEADING = 0
    SPACE = 1  # inside white space, or inside what is shown as one character
    CHARACTER = 2
    WORD = 3
    LINE = 4
    SENTENCE = 5
    BLANK = 6  # behind a blank line inside a block
    NESTED = 7  # what belongs to a list item
    ITEM = 8
    BLOCK = 9
    HEADING = 10


@dataclass(frozen=True, slots=True)
class TextBlock:
    """A stretch from `start` to the next block; `level` is its first border's. A solid one is torn only by need."""

    start: int
    level: int
    is_solid: bool = False


_HEADING = re.compile(r" {0,3}(#{1,6})(?=\s|$)")
_FENCE = re.compile(r" {0,3}(`{3,}+(?=[^`]*+$)|~{3,}+)(.*+)", re.DOTALL)
_ITEM = re.compile(r"([ \t]*+)(?:[-*+•]|\d{1,9}[.)])[ \t]")
_INDENT = re.compile(r" {4}|\t")
_UNDERLINE = re.compile(r" {0,3}(=++|-++)\s*+$")
_DELIMITER = re.compile(r"[ \t|:-]*+\s*+$")


def blocks(text: str) -> Iterator[TextBlock]:
    """Blocks in order, the first at the beginning of the text; each holds the blank lines behind it."""
    walk = _Walk([text[start:end] for start, end in lines(text, 0, end=len(text))])
    is_first = True
    for block in walk.blocks():
        yield replace(block, start=0) if is_first else block
        is_first = False


def lines(text: str, start: int, *, end: int) -> Iterator[tuple[int, int]]:
    """Where the lines of a stretch begin and end. No pattern finds that: in a long line it lets no other thread run."""
    at = {"\n": -1, "\r": -1}  # the next of each
    while start < end:
        for sign in [sign for sign, place in at.items() if place < start]:
            found = text.find(sign, start, end)
            at[sign] = end if found < 0 else found
        stop = min(at.values())
        stop = min(end, stop + (2 if text.startswith("\r\n", stop, end) else 1))
        yield start, stop
        start = stop


class _Walk:
    """One walk over the rows; `_above` is what stands over the row at hand, blank rows apart below a heading."""

    def __init__(self, rows: list[str]) -> None:
        self._rows = rows
        self._closers = _closers(rows)
        self._row = 0
        self._offset = 0
        self._above = ""
        self._in_list = False

    def blocks(self) -> Iterator[TextBlock]:
        held: TextBlock | None = None  # a line of text becomes a heading by the line below it
        while self._row < len(self._rows):
            if held is not None and self._is_underline():
                level = BorderLevel.HEADING + (5 if "=" in self._rows[self._row] else 4)
                held = replace(held, level=max(held.level, level) if held.level else held.level)
                self._above = "heading"
                self._skip(1)
                continue
            block = self._next()
            if block is not None:
                if held is not None:
                    yield held
                held = block
        if held is not None:
            yield held

    def _next(self) -> TextBlock | None:
        """The block that begins in this row, if one does; advances to the next row, or past a solid block."""
        row = self._rows[self._row]
        if row.isspace():
            self._above = "heading" if self._above == "heading" else ""
            self._skip(1)
            return None
        rows = self._solid_rows()
        if rows:
            return self._begin(BorderLevel.BLOCK, "solid", rows=rows)
        heading = _HEADING.match(row)
        if heading:
            return self._begin(BorderLevel.HEADING + 6 - len(heading[1]), "heading")
        item = _ITEM.match(row)
        if item:
            self._in_list = True
            return self._begin(BorderLevel.NESTED if len(item[1]) > 1 else BorderLevel.ITEM, "item")
        if self._above in ("line", "text", "item"):
            self._above = "text"
            self._skip(1)
            return None
        self._in_list = self._in_list and row[0] in " \t"
        return self._begin(BorderLevel.NESTED if self._in_list else BorderLevel.BLOCK, "line")

    def _begin(self, level: int, name: str, *, rows: int = 1) -> TextBlock:
        block = TextBlock(
            self._offset, BorderLevel.BEHIND_HEADING if self._above == "heading" else level, name == "solid"
        )
        self._above = name
        self._skip(rows)
        return block

    def _skip(self, rows: int) -> None:
        for row in self._rows[self._row : self._row + rows]:
            self._offset += len(row)
        self._row += rows

    def _is_underline(self) -> bool:
        return self._above == "line" and _UNDERLINE.match(self._rows[self._row]) is not None

    def _solid_rows(self) -> int:
        """How many rows the fenced block, table or indented block takes that begins here; 0 where none does."""
        if self._row in self._closers:
            return self._closers[self._row] + 1 - self._row
        row = self._rows[self._row]
        if "|" in row:
            return self._table_rows()
        if self._above == "" and not self._in_list and _INDENT.match(row):
            return self._count_rows(lambda row: row.isspace() or _INDENT.match(row) is not None)
        return 0

    def _table_rows(self) -> int:
        """How many rows the table takes that begins here. The first two decide, so that no other rows are counted."""
        row, *second = self._rows[self._row : self._row + 2]
        if not second or "|" not in second[0]:
            return 0
        is_ruled = "-" in second[0] and _DELIMITER.match(second[0]) is not None
        return self._count_rows(lambda row: "|" in row) if is_ruled or row.lstrip().startswith("|") else 0

    def _count_rows(self, belongs: Callable[[str], bool]) -> int:
        end = self._row
        while end < len(self._rows) and belongs(self._rows[end]):
            end += 1
        return end - self._row


@dataclass(frozen=True, slots=True)
class _Fence:
    row: int
    length: int
    is_bare: bool  # only a bare one closes


def _closers(rows: list[str]) -> dict[int, int]:
    """The row that closes a fence, by the row that opens it; one that nothing closes is plain text."""
    fences: dict[str, list[_Fence]] = {"`": [], "~": []}
    for row, line in enumerate(rows):
        match = _FENCE.match(line)
        if match:
            fences[match[1][0]].append(_Fence(row, len(match[1]), not match[2].strip()))
    return {opener: closer for kind in fences.values() for opener, closer in _next_longer(kind)}


def _next_longer(fences: list[_Fence]) -> Iterator[tuple[int, int]]:
    """Every fence with the next bare one that is as long: from the end, keeping only those not hidden by longer."""
    lengths: list[int] = []  # negative, ascending: the nearest fence is the last and shortest
    rows: list[int] = []
    for fence in reversed(fences):
        found = bisect_right(lengths, -fence.length)
        if found:
            yield fence.row, rows[found - 1]
        if fence.is_bare:
            hidden = bisect_left(lengths, -fence.length)
            del lengths[hidden:], rows[hidden:]
            lengths.append(-fence.length)
            rows.append(fence.row)
