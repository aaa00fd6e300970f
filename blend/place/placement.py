"""The interface of what writes stored rows, rotated, into a context; splits them between a kernel and torch."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blend.place.rotation import Angles, Rotation
from store.rows import FORM, LAYOUT_AT, ROW, TOKENS, StoredRows

_NO_ANGLES = Angles(torch.empty(0, 0), torch.empty(0, 0))
_NO_ARRAY = np.zeros((0, 0), np.float32)
_PLACE = np.arange(ROW) < LAYOUT_AT  # what a row says of its place: what it says of its layout is behind

Arrays = tuple[bool, int, NDArray[np.float32], NDArray[np.float32]]
Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class RowTurn:
    """Angles (P, n) of all slots from the first on, and which numbers turn by them; without a rotation none do."""

    rotation: Rotation | None = None
    angles: Angles = _NO_ANGLES

    @property
    def pairs(self) -> int:
        """How many pairs of numbers turn."""
        return 0 if self.rotation is None else self.rotation.pairs

    @cached_property
    def arrays(self) -> Arrays:
        """What compiled code on a CPU takes: whether halves are paired, the first number that turns, cosines, sines."""
        if self.rotation is None or not self.rotation.pairs:
            return True, 0, _NO_ARRAY, _NO_ARRAY
        sin = self.angles.sin if self.rotation.sign > 0 else -self.angles.sin
        return self.rotation.pairing == "halves", self.rotation.start, self.angles.cos.numpy(), sin.numpy()


class LayerPlaces(NamedTuple):
    """What goes to a context's keys and values (H, C, D) of some layers, of the same heads and dims, and how it turns
    in each. `slots` (M, 2) are of each record the first and the one behind the last: the tokens that have none are left
    out.
    """

    out: Sequence[tuple[Tensor, Tensor]]
    stored: StoredRows
    slots: Numbers
    turns: Sequence[tuple[RowTurn, RowTurn]]


Item = TypeVar("Item")


def in_lists(items: Iterable[Item], sizes: Iterable[int], *, most: int) -> Iterator[list[Item]]:
    """Yields the items in their order, in lists whose sizes add up to so much at most, or of one item."""
    some, total = list[Item](), 0
    for item, size in zip(items, sizes, strict=True):
        if some and total + size > most:
            yield some
            some, total = [], 0
        some.append(item)
        total += size
    if some:
        yield some


class Placement(Protocol):
    """Writes stored rows to their slots in a context. Threads may share it.

    All placements write the same bits, which are those of `store.rows.numbers_of` and `rotation.rotate_into`; a number
    that turning lifts beyond float32 is one that is not finite.
    """

    def place(self, layers: LayerPlaces) -> None:
        """Write what is stored, whose memory the caller holds until then: on a GPU until its stream is done."""
        ...


class KernelPlacement(Placement, Protocol):
    """A placement that is given parts of one form alone."""

    takes: int  # the form, of those in `store.rows`


class SplitPlacement:
    """See `Placement`. Gives a kernel the parts that it takes, and all others to `plain`, which takes any."""

    def __init__(self, kernel: KernelPlacement, *, plain: Placement) -> None:
        self.kernel = kernel
        self._plain = plain

    def place(self, layers: LayerPlaces) -> None:
        rows = layers.stored.rows
        is_taken, has_tokens = rows[:, :, FORM] == self.kernel.takes, rows[:, :, TOKENS] > 0
        for placement, wanted in ((self._plain, ~is_taken), (self.kernel, is_taken)):
            if (has_tokens & wanted).any():
                own = rows if wanted.all() else np.where(wanted[:, :, None] | _PLACE, rows, 0)  # none of the others
                placement.place(layers._replace(stored=layers.stored._replace(rows=own)))
