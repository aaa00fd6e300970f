# Triton has no types:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportIndexIssue=false, reportCallIssue=false
"""Packed codes straight to their slots in a context, on a GPU: one copy and one launch for what comes at once.

There a call costs more than its work. Frames' bytes go as they lie, behind a table that tells where in them what lies.
The numbers are those that `unpack` and `rotate_into` make, bit for bit. Needs triton, which torch for CUDA brings.
"""

from collections.abc import Sequence
from threading import Lock

import numpy as np
import torch
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from blend.model.place_spans import HEAD, KEPT, ROW_AT, SLOT, place_spans
from blend.model.row_turn import RowTurn, Stored
from store.record import LAYOUT_AT, Codes, FrameLayout, Scales

Numbers = NDArray[np.int64]

try:
    from blend.model.gathered import gathered
except ImportError:
    gathered = None

_DTYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
_ROW = LAYOUT_AT + len(FrameLayout._fields)
_START = LAYOUT_AT - 1  # in a part's row as it comes
_TOKENS, _STEP, _KEY_TRELLIS, _VALUE_TRELLIS = (
    LAYOUT_AT + FrameLayout._fields.index(name) for name in ("tokens", "step", "key_trellis", "value_trellis")
)
_TOGETHER = 8  # tokens at a time
_FEWEST, _MOST = 16, 64  # pairs of channels that a program has: each number of them is compiled for itself
_WORD = 8  # bytes of a number in the table
_KEPT_SIZES, _PLACES = 4, 1 << 16


class SpanPlacer:
    """Serves one dtype and device. Threads may share it, each on any stream. What is new to it is compiled first."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype = dtype
        self._device = device
        self._limit = torch.finfo(dtype).max
        self._sizes: dict[int, tuple[Scales, Tensor]] = {}  # by identity
        self._compiled = set[tuple[int, bool]]()
        self._lock = Lock()  # of whoever compiles, or sends sizes
        if gathered is not None:
            gathered(np.zeros((0, 2), np.int64), np.zeros(0, np.uint8))  # compiles it

    def place(self, out: tuple[Tensor, Tensor], stored: Stored, *, turns: tuple[RowTurn, RowTurn]) -> None:
        """Write first tokens of stored layers that lie in frames, each from a slot to another, to keys and values
        (H, C, D) of a context, on the current stream.
        """
        rows, places, data = _parts(stored)
        if not len(rows):
            return
        spans = _spans(rows)
        sides = [_side(numbers, turn) for numbers, turn in zip(out, turns, strict=True)]
        sizes = self._sizes_of(stored[0][2].framed[0].sizes)
        head = np.array([*sides[0], *sides[1], HEAD + rows.size], np.int64)
        before = (head.size + rows.size + spans.size) * _WORD
        rows[:, ROW_AT] = before + places[:, 1].cumsum() - places[:, 1]
        words = np.concatenate([head, rows.ravel(), spans.ravel()])
        table = self._sent(words, places, data=data)
        widest = max(out[0].shape[2], out[1].shape[2])
        channels = min(_MOST, max(_FEWEST, 1 << (-(-widest // 2) - 1).bit_length()))
        blocks = -(-widest // (2 * channels))
        grid = len(spans), out[0].shape[0] + out[1].shape[0], blocks
        self._launch(grid, (table, sizes), form=(channels, bool(rows[:, [_KEY_TRELLIS, _VALUE_TRELLIS]].any())))
        if self._device.type == "cuda":  # tables of angles grow: these may be gone before the kernel has run
            stream = torch.cuda.current_stream(self._device)
            for turn in turns:
                if turn.pairs:
                    turn.angles.cos.record_stream(stream)
                    turn.angles.sin.record_stream(stream)

    def _launch(self, grid: tuple[int, int, int], given: tuple[Tensor, Tensor], *, form: tuple[int, bool]) -> None:
        if form not in self._compiled:
            with self._lock:  # or each thread would compile it
                self._run(grid, given, form=form)
                self._compiled.add(form)
        else:
            self._run(grid, given, form=form)

    def _run(self, grid: tuple[int, int, int], given: tuple[Tensor, Tensor], *, form: tuple[int, bool]) -> None:
        channels, has_trellis = form
        place_spans[grid](
            *given,
            DTYPE=_DTYPES[self._dtype],
            LIMIT=self._limit,
            TOKENS=_TOGETHER,
            CHANNELS=channels,
            HAS_TRELLIS=has_trellis,
            enable_fp_fusion=False,  # which would round otherwise than `rotate_into`
        )

    def _sizes_of(self, sizes: Scales) -> Tensor:
        """The table of steps on the device, with one for every place that two bytes can tell."""
        kept = self._sizes.get(id(sizes))
        if kept is None:
            with self._lock:
                if len(self._sizes) >= _KEPT_SIZES:
                    self._sizes.clear()
                padded = np.pad(sizes, (0, _PLACES - len(sizes)), mode="edge")
                sent = torch.from_numpy(padded).to(self._device)  # waits: other streams read it, too
                kept = self._sizes[id(sizes)] = sizes, sent
        return kept[1]

    def _sent(self, words: Numbers, places: Numbers, *, data: Sequence[Codes]) -> Tensor:
        """The table and the bytes behind it, in one copy out of pinned memory, which nobody waits for."""
        nbytes = words.nbytes + int(places[:, 1].sum())
        joined = torch.empty(-(-nbytes // _WORD), dtype=torch.int64, pin_memory=self._device.type == "cuda")
        memory = joined.numpy()
        memory[: len(words)] = words
        room = memory.view(np.uint8)[words.nbytes :]
        if gathered is not None:
            gathered(places, room)
        else:
            start = 0
            for each in data:
                room[start : start + each.nbytes] = each
                start += each.nbytes
        return joined.to(self._device, non_blocking=True)


def _parts(stored: Stored) -> tuple[Numbers, Numbers, list[Codes]]:
    """The rows of parts that have tokens to place, with their slots and how many these are, where in memory the bytes
    of each lie and how many these are, and these bytes.
    """
    parts = [part for _, _, layer in stored for part in layer.framed]
    rows = np.concatenate([part.row for part in parts]).reshape(-1, _ROW)
    places = rows[:, :2].copy()
    slots = np.array([(start, stop) for start, stop, _ in stored], np.int64)
    slots = slots.repeat([len(layer.framed) for _, _, layer in stored], axis=0)
    rows[:, SLOT] = slots[:, 0] + rows[:, _START]  # before `KEPT` takes its place
    rows[:, KEPT] = np.minimum(rows[:, _TOKENS], slots[:, 1] - rows[:, SLOT])
    kept = rows[:, KEPT] > 0
    if kept.all():
        return rows, places, [part.data for part in parts]
    return rows[kept], places[kept], [part.data for part, is_kept in zip(parts, kept, strict=True) if is_kept]


def _spans(rows: Numbers) -> Numbers:
    """Where in the table the row of each span's part begins, and the span's number in it."""
    counts = -(-rows[:, KEPT] // rows[:, _STEP])
    firsts = counts.cumsum() - counts
    of_part = np.arange(len(rows)).repeat(counts)
    return np.stack([HEAD + _ROW * of_part, np.arange(len(of_part)) - firsts[of_part]], axis=1)


def _side(numbers: Tensor, turn: RowTurn) -> tuple[int, ...]:
    """What `place_spans.SIDE` names."""
    heads, _, dim = numbers.shape
    by_head, by_slot, by_channel = numbers.stride()
    assert by_channel == 1 or dim == 1, "the numbers of a head lie side by side"
    begin = numbers.data_ptr(), heads, dim, by_head, by_slot
    if turn.rotation is None or not turn.pairs:
        return *begin, 0, 0, 0, 0, 0, 0, 1
    rotation, cos, sin = turn.rotation, turn.angles.cos, turn.angles.sin
    assert cos.is_contiguous() and sin.is_contiguous() and cos.shape[1] == turn.pairs
    apart, hop = (turn.pairs, 1) if rotation.pairing == "halves" else (1, 2)
    return *begin, rotation.start, turn.pairs, apart, hop, cos.data_ptr(), sin.data_ptr(), rotation.sign
