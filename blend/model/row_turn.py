"""What places packed codes is told by: how rows of a layer turn. Knows angles, no kernel and no device."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blend.model.rotation import Angles, Rotation
from store.record import PackedLayer

_NO_ANGLES = Angles(torch.empty(0, 0), torch.empty(0, 0))
_NO_ARRAY = np.zeros((0, 0), np.float32)

Arrays = tuple[bool, int, NDArray[np.float32], NDArray[np.float32]]
Stored = Sequence[tuple[int, int, PackedLayer]]  # from which slot to which, and what


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
    """First tokens of stored layers that lie in frames, each from a slot to another, to keys and values (H, C, D) of a
    context.
    """

    out: tuple[Tensor, Tensor]
    stored: Stored
    turns: tuple[RowTurn, RowTurn]


class CodePlacer(Protocol):
    """Packed codes to their slots in a context, without numbers that stand between. Threads may share it."""

    def place(self, layers: Sequence[LayerPlaces]) -> None:
        """Write what is stored of some layers, whose keys and values have the same heads and dims."""
        ...
