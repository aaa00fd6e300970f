"""The vector index of a catalog for one embedder: caught up before every search, kept in a file, made anew when due.

The catalog is the truth. A file that is missing, damaged or of another catalog is left aside, and what it held is read
from the catalog again.
"""

import fcntl
import json
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from uuid import uuid4

import numpy as np
from blake3 import blake3

from retriever.catalog.catalog import Catalog
from retriever.catalog.view import CatalogView
from retriever.errors import RetrieverError
from retriever.filter_condition import EVERYTHING, FilterCondition
from retriever.nearest import LISTS, TRAINED, Allowed, Nearest
from retriever.types import CatalogState, EmbeddedChunks, Vectors

BATCH = 20_000  # vectors that are read at once
KEPT = 32  # filters whose rows are remembered
FORMAT = 1  # of files


class Overtaken(RetrieverError):
    """The index is at a later state than the view: search again with a new view."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """The contents of an index: of which catalog, up to which numbers."""

    catalog: str
    vectors: int
    removed: int


class VectorIndex:
    """Safe for threads; other processes may use the same file."""

    def __init__(self, folder: Path, *, embedder: str, dim: int) -> None:
        self._file = IndexFile(folder, f"vectors-{blake3(embedder.encode()).hexdigest(8)}")
        self._embedder = embedder
        self._dim = dim
        self._guard = threading.Lock()
        self._nearest = Nearest.flat(dim)
        self._seen: _Seen | None = None
        self._saved: _Seen | None = None
        self._allowed: OrderedDict[tuple[FilterCondition, int], Allowed] = OrderedDict()

    def search(
        self, view: CatalogView, query: Vectors, *, allowed: FilterCondition, limit: int
    ) -> list[tuple[int, float]]:
        """The nearest chunks and their cosines, best first. Raises Overtaken."""
        state = view.state()
        with self._guard:
            self._catch_up(view, state)
            rows = None if allowed == EVERYTHING else self._rows(view, allowed, changes=state.changes)
            return self._nearest.search(query, limit=limit, allowed=rows)

    def count(self, view: CatalogView, allowed: FilterCondition) -> int:
        """How many chunks a search looks at."""
        with self._guard:
            if allowed == EVERYTHING:
                return len(self._nearest)
            return self._rows(view, allowed, changes=view.state().changes).count

    def maintain(self, catalog: Catalog) -> None:
        """Rebuild the index if it was outgrown, and save it to its file. Searches go on meanwhile.

        Until then the file holds the vectors of what was deleted since it was written.
        """
        with catalog.view() as view:
            state = view.state()
            with self._guard:
                with suppress(Overtaken):  # a search was faster: its state is as good
                    self._catch_up(view, state)
                outgrown = self._nearest.is_outgrown
            if outgrown:
                made = self._made(view)
                with self._guard:
                    self._nearest, self._seen = made, _seen(state)
        with self._guard:
            if self._seen and self._seen != self._saved:
                self._file.write(self._nearest, asdict(self._seen))
                self._saved = self._seen

    def forget(self) -> None:
        """Let go of all that is known of a catalog."""
        with self._guard:
            self._nearest, self._seen, self._saved = Nearest.flat(self._dim), None, None

    def _catch_up(self, view: CatalogView, state: CatalogState) -> None:
        if self._seen is None or self._seen.catalog != state.catalog:
            self._load(state)
        seen = self._seen
        assert seen is not None
        if seen.vectors > state.vectors or seen.removed > state.removed:
            raise Overtaken("another search has seen a later state of the catalog")
        if seen.vectors < state.vectors and self._holds_former(view, seen):
            self._nearest = Nearest.flat(self._dim)
        self._nearest.remove(view.removed_after(seen.removed))
        for batch in self._batches(view, seen.vectors):
            self._nearest.add(batch.chunks, batch.vectors)
            self._seen = replace(seen, vectors=int(batch.rows[-1]))  # what follows may fail
        self._seen = _seen(state)

    def _holds_former(self, view: CatalogView, seen: _Seen) -> bool:
        """Whether all vectors are newer than the state seen, as after another embedder served for a while."""
        first = view.embedded_after(0, embedder=self._embedder, limit=1).rows
        return len(self._nearest) > 0 and (not len(first) or first[0] > seen.vectors)

    def _load(self, state: CatalogState) -> None:
        """Reads the file, if it is of this catalog and not ahead of it, as it is when a backup was restored."""
        self._nearest, self._seen = Nearest.flat(self._dim), _Seen(state.catalog, 0, 0)
        self._allowed.clear()
        found = self._file.read()
        if found is None:
            return
        nearest, facts = found
        seen = _Seen(str(facts["catalog"]), int(facts["vectors"]), int(facts["removed"]))
        ahead = seen.vectors > state.vectors or seen.removed > state.removed
        if seen.catalog == state.catalog and not ahead and nearest.dim == self._dim:
            self._nearest, self._seen, self._saved = nearest, seen, seen

    def _made(self, view: CatalogView) -> Nearest:
        """Rebuilds the index from the catalog, with a sample spread over all of it."""
        count = len(self._nearest)
        wanted = TRAINED * LISTS * count**0.5
        every = max(1, round(count / wanted))
        sample = np.concatenate([batch.vectors[::every] for batch in self._batches(view, 0)])
        made = Nearest.listed(sample, count=count)
        for batch in self._batches(view, 0):
            made.add(batch.chunks, batch.vectors)
        return made

    def _batches(self, view: CatalogView, row: int) -> Iterator[EmbeddedChunks]:
        while True:
            batch = view.embedded_after(row, embedder=self._embedder, limit=BATCH)
            if not len(batch.rows):
                return
            yield batch
            row = int(batch.rows[-1])

    def _rows(self, view: CatalogView, allowed: FilterCondition, *, changes: int) -> Allowed:
        """The chunks that a filter lets through, kept as long as the catalog does not change."""
        key = (allowed, changes)
        if key not in self._allowed:
            while len(self._allowed) >= KEPT:
                self._allowed.popitem(last=False)
            self._allowed[key] = Allowed.of(view.chunks_of(allowed))
        self._allowed.move_to_end(key)
        return self._allowed[key]


def _seen(state: CatalogState) -> _Seen:
    return _Seen(state.catalog, state.vectors, state.removed)


class IndexFile:
    """`<stem>.json` names the data file of the index, its digest, and its owner's facts."""

    def __init__(self, folder: Path, stem: str) -> None:
        self._folder = folder
        self._stem = stem
        self._head = folder / f"{stem}.json"

    def write(self, nearest: Nearest, facts: Mapping[str, str | int]) -> None:
        """Replaces the index. Readers that have the old one open keep it; other writers wait."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / f"{self._stem}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # until it is closed, or its process ends
            self._write(nearest, dict(facts))

    def _write(self, nearest: Nearest, facts: dict[str, str | int]) -> None:
        data = self._folder / f"{self._stem}-{uuid4().hex}.faiss"
        unfinished = data.with_suffix(".tmp")
        nearest.write(unfinished)
        digest = _digest(unfinished, facts)
        unfinished.replace(data)
        head = self._folder / f"{self._stem}-{uuid4().hex}.json.tmp"
        head.write_text(json.dumps({"format": FORMAT, "data": data.name, "digest": digest, "facts": facts}))
        head.replace(self._head)
        for old in self._folder.glob(f"{self._stem}-*"):
            if old != data:
                old.unlink(missing_ok=True)

    def read(self) -> tuple[Nearest, dict[str, str | int]] | None:
        """The index and its facts; None where there is none, or where it is damaged."""
        try:
            head = json.loads(self._head.read_text())
            data = self._folder / Path(head["data"]).name
            if head["format"] != FORMAT or _digest(data, head["facts"]) != head["digest"]:
                return None
            return Nearest.read(data), head["facts"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None


def _digest(path: Path, facts: dict[str, str | int]) -> str:
    """A digest of the file and of the facts too: a wrong number in them would hide vectors."""
    told = json.dumps(facts, sort_keys=True).encode()
    return blake3(told, max_threads=blake3.AUTO).update_mmap(path).hexdigest()
