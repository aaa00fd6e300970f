"""What places packed codes is told by: how rows of a layer turn. Knows angles, no kernel and no device."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blend.place.rotation import Angles, Rotation
from store.record import LAYOUT_AT, FrameLayout, PackedLayer, Scales

ROW = LAYOUT_AT + len(FrameLayout._fields)  # numbers of a part's

_NO_ANGLES = Angles(torch.empty(0, 0), torch.empty(0, 0))
_NO_ARRAY = np.zeros((0, 0), np.float32)

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


class FramedRows(NamedTuple):
    """First tokens of records that lie in frames, of some layers alike, each from a slot to another.

    `rows` (L, N, R) are those of their `FramedPart`s, record by record, `slots` (M, 2) of each record the first and the
    one behind the last; `sizes`: of steps, by place. Whoever has this holds the memory that rows tell of.
    """

    rows: Numbers
    slots: Numbers
    sizes: Scales


def framed_rows(records: Sequence[tuple[int, int, PackedLayer]]) -> FramedRows:
    """Rows of one layer of records that lie in frames, each from which slot to which."""
    rows = np.concatenate([part.row for _, _, layer in records for part in layer.framed]).reshape(1, -1, ROW)
    slots = np.array([(start, stop) for start, stop, _ in records], np.int64)
    return FramedRows(rows, slots, records[0][2].framed[0].sizes)


class LayerPlaces(NamedTuple):
    """What goes to a context's keys and values (H, C, D) of some layers, of the same heads and dims, and how it turns
    in each.
    """

    out: Sequence[tuple[Tensor, Tensor]]
    stored: FramedRows
    turns: Sequence[tuple[RowTurn, RowTurn]]


class CodePlacer(Protocol):
    """Packed codes to their slots in a context, without numbers that stand between. Threads may share it."""

    def place(self, layers: LayerPlaces) -> None:
        """Write what is stored."""
        ...
