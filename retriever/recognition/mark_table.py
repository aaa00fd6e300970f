"""Tables of marks, searched by hash. Knows no texts, and of a prompt only its block hashes."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from retriever.marks import Hashes
from retriever.types import MarkEntries
from retriever.types import Rows as Ints

_SLOTS = 128  # bits of the filter for each head: one of 128 foreign blocks passes
_SMALL = 4096  # entries beside the large table that never need a rebuild


NONE = MarkEntries.columns(rows=[], heads=[], tails=[], nbytes=[])


class MarkTable:
    """Entries sorted by head, and a filter of bits in front of them. Never changes."""

    def __init__(self, entries: MarkEntries) -> None:
        self.entries = entries.at(np.argsort(entries.heads))
        slots_log2 = max(10, (len(entries) * _SLOTS - 1).bit_length())
        self._shift = np.uint64(64 - slots_log2)
        self._bits = self._filled(slots_log2)

    def _filled(self, slots_log2: int) -> NDArray[np.uint8]:
        """The filter's bits. Slots ascend with the heads, so those of one byte stand side by side."""
        bits = np.zeros(1 << slots_log2 - 3, dtype=np.uint8)
        if len(self.entries):
            slots = (self.entries.heads >> self._shift).view(np.int64)
            first = np.flatnonzero(np.diff(slots >> 3, prepend=-1))
            ones = np.left_shift(1, slots & 7).astype(np.uint8)
            bits[slots[first] >> 3] = np.bitwise_or.reduceat(ones, first)
        return bits

    @cached_property
    def levels(self) -> frozenset[int]:
        exponents: list[int] = np.unique(np.frexp(self.entries.nbytes)[1]).tolist()
        return frozenset(exponent - 1 for exponent in exponents)

    def places(self, hashes: Hashes) -> Ints:
        """Where in `hashes` the head of an entry stands."""
        slots = (hashes >> self._shift).view(np.int64)
        passed = np.flatnonzero(self._bits[slots >> 3] >> (slots.astype(np.uint8) & 7) & 1)
        heads, wanted = self.entries.heads, hashes[passed]
        nearest: Ints = np.minimum(np.searchsorted(heads, wanted), len(heads) - 1)
        return passed[heads[nearest] == wanted]

    def headed(self, heads: Hashes) -> MarkEntries:
        low = np.searchsorted(self.entries.heads, heads, side="left")
        high = np.searchsorted(self.entries.heads, heads, side="right")
        return self.entries.at(ranges(low, high))


def ranges(low: Ints, high: Ints) -> Ints:
    """`low[0], …, high[0] - 1, low[1], …`: one range behind the other."""
    counts = high - low
    shifts: Ints = np.repeat(high - np.cumsum(counts), counts)
    return shifts + np.arange(len(shifts))


@dataclass(frozen=True, slots=True)
class KnownMarks:
    """All known marks at one moment; immutable. `gone` are rows of `main` that no longer count, sorted."""

    main: MarkTable
    fresh: MarkTable
    gone: Ints

    @classmethod
    def of(cls, entries: MarkEntries) -> "KnownMarks":
        return cls(MarkTable(entries), MarkTable(NONE), NONE.rows)

    def __len__(self) -> int:
        return len(self.main.entries) - len(self.gone) + len(self.fresh.entries)

    def changed(self, rows: Ints, entries: MarkEntries) -> "KnownMarks":
        """The state without these rows and with the entries: kept beside the large table, until they are too many."""
        fresh = self.fresh.entries.without(rows).joined(entries)
        gone = np.union1d(self.gone, rows[np.isin(rows, self.main.entries.rows)])
        if len(fresh) + len(gone) <= max(_SMALL, len(self.main.entries) >> 5):
            return KnownMarks(self.main, MarkTable(fresh), gone)
        return KnownMarks.of(self.main.entries.without(gone).joined(fresh))

    def tables(self, level: int) -> list[MarkTable]:
        return [table for table in (self.main, self.fresh) if level in table.levels]

    def headed(self, heads: Hashes) -> MarkEntries:
        return self.main.headed(heads).without(self.gone).joined(self.fresh.headed(heads))


@dataclass(frozen=True, slots=True)
class PromptLevel:
    """One level of a prompt: the block hashes of all places, the places of known beginnings (by hash, then from left to
    right), and the entries whose beginning is there and whose end seems to be."""

    size: int
    hashes: Hashes
    places: Ints
    entries: MarkEntries


def levels(state: KnownMarks, blocks: Iterator[tuple[int, Hashes]]) -> Iterator[PromptLevel]:
    """The levels at which a match is possible."""
    for level, hashes in blocks:
        found = [table.places(hashes) for table in state.tables(level)]
        places = np.unique(np.concatenate(found)) if found else NONE.rows
        if len(places):
            entries = state.headed(np.unique(hashes[places]))
            entries = entries.at(np.flatnonzero(entries.nbytes >> level == 1))
            entries = _ending(entries, hashes)
            if len(entries):
                order = np.argsort(hashes[places], kind="stable")
                yield PromptLevel(1 << level, hashes, places[order], entries)


def _ending(entries: MarkEntries, hashes: Hashes) -> MarkEntries:
    """The entries whose tail may be among the hashes: of ten thousand that begin alike, few are left. Two looks at
    different bits, each of which lets one of sixteen pass that is not there."""
    width = min(28, len(hashes).bit_length() + 4)
    shift = np.uint64(64 - width)
    for skipped in (np.uint64(0), np.uint64(width)):
        ends = np.zeros(1 << width, dtype=np.bool_)
        ends[hashes << skipped >> shift] = True
        entries = entries.at(np.flatnonzero(ends[entries.tails << skipped >> shift]))
    return entries
