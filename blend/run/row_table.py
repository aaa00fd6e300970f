"""The seam of tables that tell the rows of a pass: where keys and values of each go, and where those lie that it sees.

What writes and attends them by one call is a kernel of numba's (`cpu_rows.py`) or of Triton's (`gpu_rows.py`). Where
neither suits, torch writes context by context, and `attention.py` attends so.
"""

from typing import Protocol

from torch import Tensor


class RowTable(Protocol):
    """Letters: `N` rows, `H` kv heads, `Hq` query heads, `D` and `E` numbers of a key and of a value."""

    @property
    def most(self) -> int:
        """How many slots are visible to a row at most."""
        ...

    def write(self, layer: int, keys: Tensor, *, values: Tensor) -> None:
        """Put a pass' keys (H, N, D) and values at their slots."""
        ...

    def attend(self, layer: int, query: Tensor, *, window: int, scale: float) -> Tensor | None:
        """Query (1, Hq, N, D) to (1, N, Hq, E), each row over so many slots up to its own.

        None where the kernel does not take a layer's heads.
        """
        ...
