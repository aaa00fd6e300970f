"""Rows of a decoding step on a CPU, written and attended by numba on torch's OpenMP threads or in one, else by torch.

Letters: `N` rows, `H` kv heads, `Hq` query heads, `D` and `E` numbers of a key and of a value.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blend.kernels.attend_call import PLACE, SLOT, AttendCall
from blend.kernels.kernels import cpu_rows_kernels
from blend.run.context import Context, LayerShape, Segment

_WORDS = {torch.float32: np.uint32, torch.bfloat16: np.uint16}
_VIEWED = {torch.float32: torch.uint32, torch.bfloat16: torch.uint16}


@cache
def cpu_row_tables(dtype: torch.dtype, device: torch.device) -> "CpuRowTables | None":
    """What writes and attends such rows, compiled the first time; None where torch does it context by context."""
    if cpu_rows_kernels is None or device.type != "cpu" or dtype not in _WORDS:
        return None
    return CpuRowTables(dtype)


class CpuRowTables:
    """Makes the tables of passes, and holds the compiled kernels of one dtype. Threads may share it."""

    def __init__(self, dtype: torch.dtype) -> None:
        assert cpu_rows_kernels is not None
        self.dtype = dtype
        self.kernels = cpu_rows_kernels(is_short=dtype == torch.bfloat16)
        self._in_one_thread = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.kernels.attend)
        self._learn_types()

    def rows(self, segments: Sequence[Segment]) -> "CpuRows | None":
        """The table of a pass; None where a context has several rows, or buffers that are not its own."""
        contexts = [each.context for each in segments if isinstance(each.context, Context) and len(each.slots) == 1]
        if len(contexts) < len(segments) or any(
            each.key_heads != each.value_heads for each in contexts[0].shapes if each
        ):
            return None
        if torch.get_num_threads() > 1 and _team() is None:
            return None
        places = np.empty((len(contexts[0].shapes), len(segments), PLACE), np.int64)
        for row, (context, each) in enumerate(zip(contexts, segments, strict=True)):
            places[:, row, :SLOT], places[:, row, SLOT] = context.addresses, each.slots.last
        places[:, :, 2:SLOT] *= self.dtype.itemsize
        return CpuRows(self, contexts[0].shapes, places)

    def attend(self, call: AttendCall) -> None:
        """Do what the call says, by the threads that torch computes with."""
        threads, team = torch.get_num_threads(), _team()
        if threads == 1 or team is None:
            numbers = np.array(call, np.int64)  # an address alone does not hold it
            self._in_one_thread(numbers.ctypes.data)
        else:
            numbers = np.array(call._replace(number=team.number, threads=team.threads), np.int64)
            team.run(self.kernels.attend, numbers.ctypes.data, threads, 0)

    def _learn_types(self) -> None:
        """Call it once for nothing: numba may give a type two numbers and refuse it, where two threads call first."""
        words = np.zeros((0, 1, 1), _WORDS[self.dtype])
        self.kernels.write(words, words, np.zeros((0, PLACE), np.int64))


class _Team(NamedTuple):
    """C functions: one that has another run by so many threads, and the addresses of those that tell such a thread its
    number, and how many they are.
    """

    run: Callable[[int, int, int, int], None]
    number: int
    threads: int


@cache
def _team() -> _Team | None:
    """The threads that torch computes with; None where it does not use OpenMP as gcc has it called."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        run, tellers = library.GOMP_parallel, (library.omp_get_thread_num, library.omp_get_num_threads)
    except (OSError, AttributeError):
        return None
    run.argtypes, run.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint), None
    number, threads = (ctypes.cast(each, ctypes.c_void_p).value or 0 for each in tellers)
    return _Team(run, number, threads)


@dataclass(frozen=True, slots=True)
class CpuRows:
    """One row of each context, with `places` (L, N, PLACE) as the kernels take them. See `RowTable`."""

    by: CpuRowTables
    shapes: Sequence[LayerShape | None]
    places: NDArray[np.int64]

    @property
    def most(self) -> int:
        """See `RowTable`."""
        return int(self.places[0, :, SLOT].max()) + 1

    def write(self, layer: int, keys: Tensor, *, values: Tensor) -> None:
        """See `RowTable`."""
        words = _VIEWED[keys.dtype]
        fresh = [each.transpose(0, 1).contiguous().view(words).numpy() for each in (keys, values)]
        self.by.kernels.write(*fresh, self.places[layer])

    def attend(self, layer: int, query: Tensor, *, window: int, scale: float) -> Tensor:
        """See `RowTable`."""
        shape, (heads, rows, dim) = self.shapes[layer], query.shape[1:]
        assert shape is not None
        queries, places = query[0].transpose(0, 1).float().contiguous(), self.places[layer]
        found = torch.empty(1, rows, heads, shape.value_dim)
        group = heads // shape.key_heads
        begins = queries.data_ptr(), found.data_ptr(), places.ctypes.data
        sizes = rows, shape.key_heads, group, dim, shape.value_dim, window
        self.by.attend(AttendCall(*begins, *sizes, int(np.float32(scale).view(np.uint32)), 0, 0))
        return found.to(query.dtype)
