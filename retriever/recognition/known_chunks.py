"""Finds known chunks' texts in a prompt: the longest first, none that overlap, and after how much work it stops.

A chunk is known by its text without outer white space. Of all places where such a text stands whose row is allowed,
the longest in UTF-8 bytes is taken first, of equally long ones the leftmost; a place that overlaps one taken before is
dropped. So where a long chunk is dropped, a shorter one at the same place may still fit. Where several allowed rows
have the same text, the lowest is named.

Rows that are not allowed are left out before anything is chosen or counted: no result depends on them.

Work on a prompt is bounded. Texts that repeat themselves make billions of places to look at; after `MOST_PAIRS` of them
what remains, the shorter chunks, is not recognised in that prompt. What is named stands there in any case.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from threading import Lock

import numpy as np

from retriever.marks import Hashes, block_hashes, stripped
from retriever.recognition.mark_table import NONE, Ints, KnownMarks, PromptLevel, levels, ranges
from retriever.types import MarkEntries

MOST_PAIRS = 1 << 24  # places of a beginning times the chunks with this beginning: a third of a second
_PIECE = 1 << 18  # so many of them at a time

Texts = Callable[[Sequence[int]], Mapping[int, str]]
Allowed = Callable[[Sequence[int]], Container[int]]


@dataclass(frozen=True, slots=True, order=True)
class Match:
    """The text of `row` stands from `start` to `end`, in characters of the prompt."""

    start: int
    end: int
    row: int


class KnownChunks:
    """The known chunks, about 50 bytes of memory each. Every method may be called from any thread."""

    def __init__(self, entries: MarkEntries = NONE) -> None:
        self._changing = Lock()
        self._state = KnownMarks.of(entries)

    def __len__(self) -> int:
        return len(self._state)

    def add(self, entries: MarkEntries) -> None:
        """Add entries. A known row keeps only its new mark."""
        with self._changing:
            self._state = self._state.changed(entries.rows, entries)

    def remove(self, rows: Sequence[int]) -> None:
        """Remove these rows. Removing unknown rows is safe."""
        with self._changing:
            self._state = self._state.changed(np.asarray(rows, dtype=np.int64), NONE)

    def find(self, text: str, *, texts: Texts, allowed: Allowed) -> list[Match]:
        """The matches in the order of the prompt. `texts` returns the texts of allowed candidates; a row that it leaves
        out is not recognised. `allowed` returns which of some rows may be matched."""
        data = text.encode("utf-8", "surrogatepass")
        search = _Search(data, texts)
        for level in reversed(list(levels(self._state, block_hashes(data)))):
            rows: list[int] = level.entries.rows.tolist()
            may = allowed(rows)
            search.look(level, _Keys(level.entries.at(np.flatnonzero([row in may for row in rows]))))
        return _in_characters(data, sorted(search.taken))


def _in_characters(data: bytes, matches: Sequence[Match]) -> list[Match]:
    """The matches in characters; in UTF-8 they begin and end between characters."""
    starts = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) & 0xC0 != 0x80)
    places = np.searchsorted(starts, [(match.start, match.end) for match in matches])
    return [
        Match(start, end, match.row)
        for (start, end), match in zip(places.reshape(-1, 2).tolist(), matches, strict=True)
    ]


class _Keys:
    """The different marks among entries, longest first, each with its rows."""

    def __init__(self, entries: MarkEntries) -> None:
        entries = entries.at(np.lexsort((entries.rows, entries.tails, entries.heads, -entries.nbytes)))
        differs = np.ones(len(entries), dtype=np.bool_)
        columns = (entries.nbytes, entries.heads, entries.tails)
        differs[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
        first = np.flatnonzero(differs)
        self.heads: Hashes = entries.heads[first]
        self.tails: Hashes = entries.tails[first]
        self.nbytes: Ints = entries.nbytes[first]
        self._rows = entries.rows
        self._first = np.append(first, len(entries))

    def __len__(self) -> int:
        return len(self.nbytes)

    def rows(self, key: int) -> list[int]:
        """The rows with this mark, lowest first."""
        return self._rows[self._first[key] : self._first[key + 1]].tolist()


@dataclass(frozen=True, slots=True)
class _Places:
    """Where keys seem to stand: `keys[j]` at `starts[j]`."""

    starts: Ints
    keys: Ints

    def at(self, where: Ints) -> "_Places":
        return _Places(self.starts[where], self.keys[where])

    def joined(self, other: "_Places") -> "_Places":
        return _Places(np.append(self.starts, other.starts), np.append(self.keys, other.keys))


class _Search:
    """One prompt, looked at from the highest level to the lowest. `taken` is in bytes."""

    def __init__(self, data: bytes, texts: Texts) -> None:
        self.taken: list[Match] = []
        self._data = data
        self._ask = texts
        self._texts: dict[int, bytes | None] = {}
        self._pairs = 0
        self._room: Ints = np.arange(len(data), 0, -1)  # bytes from each place to the next that is taken

    def look(self, level: PromptLevel, keys: _Keys) -> None:
        """Searches piece by piece: matches that are taken spare later pieces most pairs. Places of equally
        long keys wait for each other: among them the leftmost is first, whatever piece it is from."""
        done = 0
        waiting = _Places(NONE.rows, NONE.rows)
        while done < len(keys) and self._pairs < MOST_PAIRS:
            free = level.places[self._room[level.places] >= level.size]
            heads = level.hashes[free]
            low = np.searchsorted(heads, keys.heads[done:], side="left")
            high = np.searchsorted(heads, keys.heads[done:], side="right")
            count = max(1, int(np.searchsorted(np.cumsum(high - low), _PIECE, side="right")))
            low, high = low[:count], high[:count]
            numbers = np.repeat(np.arange(done, done + count), high - low)
            waiting = waiting.joined(self._fitting(level, keys, places=_Places(free[ranges(low, high)], numbers)))
            self._pairs += len(numbers)
            done += count
            complete = keys.nbytes[waiting.keys] > (keys.nbytes[done] if done < len(keys) else 0)
            self._take(keys, waiting.at(np.flatnonzero(complete)))
            waiting = waiting.at(np.flatnonzero(~complete))
        self._take(keys, waiting)

    def _fitting(self, level: PromptLevel, keys: _Keys, *, places: _Places) -> _Places:
        """The places that are free and end as the key does."""
        places = self._free(keys, places)
        tails = places.starts + keys.nbytes[places.keys] - level.size
        return places.at(np.flatnonzero(level.hashes[tails] == keys.tails[places.keys]))

    def _free(self, keys: _Keys, places: _Places) -> _Places:
        return places.at(np.flatnonzero(self._room[places.starts] >= keys.nbytes[places.keys]))

    def _take(self, keys: _Keys, places: _Places) -> None:
        """Takes the matches at these places that are still free, by the rule above."""
        places = self._free(keys, places)
        if not len(places.keys):
            return
        self._fetch([keys.rows(key)[0] for key in np.unique(places.keys).tolist()])
        nbytes = keys.nbytes[places.keys]
        places, nbytes = places.at(order := np.lexsort((places.starts, -nbytes))), nbytes[order]
        borders = np.flatnonzero(np.diff(nbytes, prepend=0, append=0))
        for first, last in pairwise(borders.tolist()):
            self._walk(keys, _Places(places.starts[first:last], places.keys[first:last]))

    def _walk(self, keys: _Keys, places: _Places) -> None:
        """Visits places of equally long keys, from left to right."""
        places = self._free(keys, places)
        at = 0
        while at < len(places.keys):
            key, start = int(places.keys[at]), int(places.starts[at])
            end = start + int(keys.nbytes[key])
            rows = keys.rows(key)
            row = self._row(rows, self._data[start:end])
            if row is not None:
                self._occupy(Match(start, end, row))
                at = int(np.searchsorted(places.starts, end))
            elif any(self._texts[row] is not None for row in rows):
                at += 1
            else:  # removed chunks must not be looked up at thousands of places
                places, at = places.at(np.flatnonzero((places.keys != key) & (places.starts > start))), 0

    def _occupy(self, match: Match) -> None:
        """Takes a match. No longer one follows, so only as many places before it need to be marked."""
        self.taken.append(match)
        self._room[match.start : match.end] = 0
        before = self._room[max(0, match.start * 2 - match.end) : match.start]
        np.minimum(before, np.arange(len(before), 0, -1), out=before)

    def _row(self, rows: Sequence[int], data: bytes) -> int | None:
        """The first of these rows that has this text."""
        for row in rows:
            self._fetch([row])
            if self._texts[row] == data:
                return row
        return None

    def _fetch(self, rows: Sequence[int]) -> None:
        new = [row for row in rows if row not in self._texts]
        if new:
            found = self._ask(new)
            self._texts.update((row, stripped(found[row]) if row in found else None) for row in new)
