"""Nearest vectors in memory, by faiss: exact while few, then in lists (IVF), and how many lists a query looks at.

Lists (IVF) and not a graph: they forget vectors, they are built in minutes, and behind a filter they can be searched
to the end, which is exact and, up to `EXACT` vectors, soon enough.
"""

# faiss is typed by halves
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportArgumentType=false

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import faiss
import numpy as np
from numpy.typing import NDArray

from retriever.types import Rows, Vectors

FLAT = 50_000  # vectors that are searched one by one
GROWN = 4  # lists are made anew when there are so many times the vectors that they were made for
EXACT = 50_000  # vectors behind a filter that are searched one by one
TRAINED = 40  # vectors of each list that it is made from
LISTS = 4  # times the root of the number of vectors
PROBED = 1 / 16  # of the lists, those nearest to a query that are searched
FEWEST_PROBED = 16


@dataclass(frozen=True, slots=True)
class Allowed:
    """A set of numbers, as bits."""

    bits: NDArray[np.uint8]
    count: int

    @classmethod
    def of(cls, rows: Rows) -> Self:
        bits = np.zeros(int(rows.max(initial=-1)) + 1, np.bool_)
        bits[rows] = True
        return cls(np.packbits(bits, bitorder="little"), len(rows))


class Nearest:
    """Numbered vectors of unit length. Not safe for threads while it is changed."""

    def __init__(self, index: faiss.Index) -> None:
        self._index = index

    @classmethod
    def flat(cls, dim: int) -> Self:
        """An empty index, for a few vectors."""
        return cls(faiss.IndexIDMap2(faiss.IndexFlatIP(dim)))

    @classmethod
    def listed(cls, sample: Vectors, *, count: int) -> Self:
        """An empty index for about so many vectors, of which some are given. Takes a while."""
        lists = max(1, round(LISTS * count**0.5))
        index = faiss.index_factory(sample.shape[1], f"IVF{lists},SQfp16", faiss.METRIC_INNER_PRODUCT)
        index.by_residual = False  # halves of floats are near enough by themselves
        index.train(np.ascontiguousarray(sample, np.float32))
        return cls(index)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads an index that `write` wrote; the caller checks that it is whole."""
        return cls(faiss.read_index(str(path)))

    def write(self, path: Path) -> None:
        faiss.write_index(self._index, str(path))

    def __len__(self) -> int:
        return int(self._index.ntotal)

    @property
    def dim(self) -> int:
        return int(self._index.d)

    @property
    def _lists(self) -> int:
        """The number of lists, 0 where there are none."""
        return int(self._index.nlist) if isinstance(self._index, faiss.IndexIVF) else 0

    @property
    def is_outgrown(self) -> bool:
        """Whether the index should be rebuilt."""
        return len(self) > max(FLAT, GROWN * (self._lists / LISTS) ** 2)

    def add(self, rows: Rows, vectors: Vectors) -> None:
        if len(rows):
            self._index.add_with_ids(np.ascontiguousarray(vectors, np.float32), rows)

    def remove(self, rows: Rows) -> None:
        if len(rows):
            self._index.remove_ids(rows)

    def search(self, query: Vectors, *, limit: int, allowed: Allowed | None = None) -> list[tuple[int, float]]:
        """The nearest numbers and their cosines, best first."""
        if not len(self) or limit < 1 or (allowed and not allowed.count):
            return []
        selector = faiss.IDSelectorBitmap(allowed.bits) if allowed else None
        if self._lists:
            how = faiss.SearchParametersIVF(sel=selector, nprobe=self._probed(allowed))
        else:
            how = faiss.SearchParameters(sel=selector)
        scores, rows = self._index.search(query[None].astype(np.float32), min(limit, len(self)), params=how)
        return [(int(row), float(score)) for row, score in zip(rows[0], scores[0], strict=True) if row >= 0]

    def _probed(self, allowed: Allowed | None) -> int:
        """The number of lists to look at: the fewer a filter lets through, the more of them hold the nearest."""
        if allowed and allowed.count <= EXACT:
            return self._lists
        share = allowed.count / len(self) if allowed else 1.0
        return min(self._lists, math.ceil(max(FEWEST_PROBED, PROBED * self._lists) / share**0.5))
