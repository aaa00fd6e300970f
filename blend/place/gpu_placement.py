# Triton has no types:
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportCallIssue=false
"""Stored rows into a context on a GPU: one copy out of pinned memory, two kernel launches, and the table they read.

There a call costs more than its work. Frames' bytes go behind a table that tells where in them what lies; those in
memory that the GPU reads itself are brought by a kernel. Needs triton, which torch for CUDA brings.
"""

import ctypes
from threading import Lock
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from blend.kernels.kernels import gathered, gpu_place_kernel
from blend.kernels.span_side import BOTH_SIDES, FIRST_SIDE, KEPT, ROW_AT, SIDES, SLOT, SpanSide
from blend.place.placement import LayerPlaces, Numbers, RowTurn
from store.record import Codes, Scales
from store.rows import ADDRESS, IN_CODES, IS_PINNED, LAYOUT_AT, NBYTES, ROW, STEP, TOKENS, FrameLayout, records_of

_KEY_TRELLIS, _VALUE_TRELLIS = (LAYOUT_AT + FrameLayout._fields.index(f"{each}_trellis") for each in ("key", "value"))
_TOGETHER = 8  # tokens at a time
_FEWEST, _MOST = 16, 64  # pairs of channels that a program has: each number of them is compiled for itself
_WORD = 8  # bytes of a number in the table
_BRINGING, _WORDS, _WARPS = 2, 1024, 8  # programs that bring a part, numbers at a time, and what takes 46 GB/s of 52
_KEPT_SIZES, _PLACES = 4, 1 << 16


class _Form(NamedTuple):
    """What the kernels are compiled for."""

    channels: int
    has_trellis: bool
    is_brought: bool


class _Given(NamedTuple):
    """What the kernels are given: `pieces` to bring, `spans` to place."""

    table: Tensor
    sizes: Tensor
    brought: Tensor
    pieces: int
    spans: int


class GpuPlacement:
    """See `KernelPlacement`. Serves one dtype and device, each thread on any stream; what is new is compiled first."""

    takes = IN_CODES

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype = dtype
        self._device = device
        self._limit = torch.finfo(dtype).max
        self._sizes: dict[int, tuple[Scales, Tensor]] = {}  # by identity
        self._compiled = set[_Form]()
        self._lock = Lock()  # of whoever compiles, or sends sizes
        if gathered is not None:
            gathered(np.zeros((0, 2), np.int64), np.zeros(0, np.uint8))  # compiles it

    def place(self, layers: LayerPlaces) -> None:
        rows, told = _rows(layers)
        if not len(rows):
            return
        keys, values = layers.out[0]
        given = self._given(layers, rows=rows, told=told)
        widest = max(keys.shape[2], values.shape[2])
        channels = min(_MOST, max(_FEWEST, 1 << (-(-widest // 2) - 1).bit_length()))
        grid = given.spans, keys.shape[0] + values.shape[0], -(-widest // (2 * channels))
        has_trellis = bool(rows[:, [_KEY_TRELLIS, _VALUE_TRELLIS]].any())
        self._launch(grid, given, form=_Form(channels, has_trellis, given.pieces > 0))
        if self._device.type == "cuda":  # tables of angles grow: these may be gone before the kernel has run
            stream = torch.cuda.current_stream(self._device)
            turns = {id(turn.angles): turn for both in layers.turns for turn in both if turn.pairs}
            for turn in turns.values():
                turn.angles.cos.record_stream(stream)
                turn.angles.sin.record_stream(stream)

    def _launch(self, grid: tuple[int, int, int], given: _Given, *, form: _Form) -> None:
        if form not in self._compiled:
            with self._lock:  # or each thread would compile it
                self._run(grid, given, form=form)
                self._compiled.add(form)
        else:
            self._run(grid, given, form=form)

    def _run(self, grid: tuple[int, int, int], given: _Given, *, form: _Form) -> None:
        assert gpu_place_kernel is not None
        if form.is_brought:
            gpu_place_kernel.bring[given.pieces, _BRINGING](given.table, given.brought, WORDS=_WORDS, num_warps=_WARPS)
        gpu_place_kernel.gpu_place_kernel[grid](
            given.table,
            given.sizes,
            DTYPE=gpu_place_kernel.DTYPES[self._dtype],
            LIMIT=self._limit,
            TOKENS=_TOGETHER,
            CHANNELS=form.channels,
            HAS_TRELLIS=form.has_trellis,
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

    def _given(self, layers: LayerPlaces, *, rows: Numbers, told: Numbers) -> _Given:
        """The table, and behind it the bytes that only the host reads, in one copy out of pinned memory, which nobody
        waits for; and room for the others.
        """
        sides = [
            number
            for both, turns in zip(layers.out, layers.turns, strict=True)
            for each, turn in zip(both, turns, strict=True)
            for number in _side(each, turn)
        ]
        head = np.array([0, 0, *sides], np.int64)
        is_far = rows[:, IS_PINNED] == 0
        far, near = rows[is_far][:, [ADDRESS, NBYTES]], rows[~is_far][:, [ADDRESS, NBYTES]]
        pieces, spans = _pieces(near), _spans(told, first=len(head))
        head[:FIRST_SIDE] = head.size + told.size, head.size + told.size + spans.size
        words = head.size + told.size + spans.size + pieces.size
        joined = torch.empty(
            words + -(-int(far[:, 1].sum()) // _WORD), dtype=torch.int64, pin_memory=self._device.type == "cuda"
        )
        memory, table = joined.numpy(), torch.empty_like(joined, device=self._device)
        brought = table.new_empty(int(pieces[:, 1].sum()))
        if len(far):
            (gathered or _moved)(far, memory[words:].view(np.uint8))
        told[is_far, ROW_AT] = words * _WORD + far[:, 1].cumsum() - far[:, 1]
        told[~is_far, ROW_AT] = brought.data_ptr() - table.data_ptr() + pieces[:, 2] * _WORD
        np.concatenate([head, told.ravel(), spans.ravel(), pieces.ravel()], out=memory[:words])
        table.copy_(joined, non_blocking=True)
        return _Given(table, self._sizes_of(layers.stored.sizes), brought, len(pieces), len(spans))


def _moved(places: Numbers, out: Codes) -> None:
    """Copies what lies at each (address, bytes) behind one another, where no kernel gathers them in one call."""
    to = out.ctypes.data
    for address, nbytes in places.tolist():
        ctypes.memmove(to, address, nbytes)
        to += nbytes


def _rows(places: LayerPlaces) -> tuple[Numbers, Numbers]:
    """The rows of parts that have tokens to place, and the same as they are told, but for where their bytes are."""
    stored = places.stored.rows
    layers, parts, _ = stored.shape
    rows = stored.reshape(-1, ROW)
    slots = places.slots[records_of(stored).ravel()]
    told = rows.copy()
    told[:, SIDES] = np.repeat(FIRST_SIDE + BOTH_SIDES * np.arange(layers), parts)
    told[:, SLOT] += slots[:, 0]
    told[:, KEPT] = np.minimum(rows[:, TOKENS], slots[:, 1] - told[:, SLOT])
    some = told[:, KEPT] > 0
    return (rows, told) if some.all() else (rows[some], told[some])


def _pieces(near: Numbers) -> Numbers:
    """Where pieces of memory are, how many words each has, and where among the words that are brought."""
    words = -(-near[:, 1] // _WORD)
    return np.stack([near[:, 0], words, words.cumsum() - words], axis=1)


def _spans(told: Numbers, *, first: int) -> Numbers:
    """Where in the table the row of each span's part begins, and the span's number in it."""
    counts = -(-told[:, KEPT] // told[:, STEP])
    firsts = counts.cumsum() - counts
    of_part = np.arange(len(told)).repeat(counts)
    return np.stack([first + ROW * of_part, np.arange(len(of_part)) - firsts[of_part]], axis=1)


def _side(numbers: Tensor, turn: RowTurn) -> SpanSide:
    """Where a layer's keys, or its values, go."""
    heads, _, dim = numbers.shape
    by_head, by_slot, by_channel = numbers.stride()
    assert by_channel == 1 or dim == 1, "the numbers of a head lie side by side"
    begin = numbers.data_ptr(), heads, dim, by_head, by_slot
    if turn.rotation is None or not turn.pairs:
        return SpanSide(*begin)
    rotation, cos, sin = turn.rotation, turn.angles.cos, turn.angles.sin
    assert cos.is_contiguous() and sin.is_contiguous() and cos.shape[1] == turn.pairs
    apart, hop = (turn.pairs, 1) if rotation.pairing == "halves" else (1, 2)
    return SpanSide(*begin, rotation.start, turn.pairs, apart, hop, cos.data_ptr(), sin.data_ptr(), rotation.sign)
