# numba's decorators have no types:
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false, reportCallIssue=false
"""Numba kernels of a decoding step: rows written; attention with softmax and exponential, heads shared out to threads.

Letters: `N` rows, `H` kv heads, `G` query heads of each, `D` and `E` numbers of a key and of a value.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numba import (
    cfunc,
    int64,
    njit,
    types,
    uint16,
    uint32,
    void,
)
from numba.np.unsafe.ndarray import to_fixed_tuple  # pyright: ignore[reportUnknownVariableType]
from numpy.typing import NDArray

from blend.kernels.attend_call import PLACE, SLOT, AttendCall
from blend.kernels.compiled import (
    Word,
    call_at,
    compiled,
    compiled_apart,
    compiled_loosely,
    widened,
    words_at,
)

Floats = NDArray[np.float32]
Words = NDArray[np.uint16 | np.uint32]
Numbers = NDArray[np.int64]
Scratch = tuple[Floats, Floats, Floats]  # scores (G, _SEEN), each query head's largest so far, its sum of weights

_FIELDS = len(AttendCall._fields)
_SEEN = 64  # keys at a time, which stay in the L1 cache with their values
_LOG2E, _HALF, _LEAST = np.float32(math.log2(math.e)), np.float32(0.5), np.float32(-126)
_BIAS, _MANTISSA = np.int32(127), np.int32(23)
_POLYNOMIAL = [np.float32(math.log(2) ** n / math.factorial(n)) for n in range(7)]  # of 2 to the power of -0.5 to 0.5
_ONE, _P1, _P2, _P3, _P4, _P5, _P6 = _POLYNOMIAL


@compiled_loosely
def _largest(scores: Floats, count: int) -> np.float32:
    top = scores[0]
    for t in range(count):
        top = max(top, scores[t])
    return top


@compiled_loosely
def _to_weights(scores: Floats, count: int, top: np.float32) -> np.float32:
    """Turns scores, none above `top`, into weights in place; returns their sum."""
    total = np.float32(0)
    for t in range(count):
        x = max(np.float32(np.float32(scores[t] - top) * _LOG2E), _LEAST)
        whole = np.floor(np.float32(x + _HALF))
        r = np.float32(x - whole)
        p = np.float32(_P6 * r + _P5)
        p = np.float32(p * r + _P4)
        p = np.float32(p * r + _P3)
        p = np.float32(p * r + _P2)
        p = np.float32(p * r + _P1)
        p = np.float32(p * r + _ONE)
        power = np.int32(np.int32(np.int32(whole) + _BIAS) << _MANTISSA)
        weight = np.float32(p * power.view(np.float32))
        scores[t] = weight
        total += weight
    return total


@compiled_loosely
def _score(scores: Floats, query: Floats, keys: Words, scale: np.float32) -> None:
    """Scores (G, count) of some keys."""
    group, dim = query.shape
    for t in range(len(keys)):
        key = keys[t]
        for g in range(group):
            asked, total = query[g], np.float32(0)
            for d in range(dim):
                total += np.float32(asked[d] * widened(key[d]))
            scores[g, t] = np.float32(total * scale)


@compiled_loosely
def _add(out: Floats, weights: Floats, values: Words, shrunk: np.float32) -> None:
    """Scales the output so far by `shrunk`, and adds weighted values."""
    for e in range(len(out)):
        out[e] *= shrunk
    for t in range(len(values)):
        value, weight = values[t], weights[t]
        for e in range(len(out)):
            out[e] += np.float32(weight * widened(value[e]))


@compiled_apart
def _attend_head(out: Floats, query: Floats, keys: Words, values: Words, scale: np.float32, scratch: Scratch) -> None:  # noqa: PLR0917
    """Query (G, D) over keys (S, D) and values (S, E), to (G, E)."""
    group, seen, (scores, tops, totals) = len(query), len(keys), scratch
    for g in range(group):
        tops[g], totals[g] = -np.inf, 0
        for e in range(out.shape[1]):
            out[g, e] = 0
    for first in range(0, seen, _SEEN):
        count = min(_SEEN, seen - first)
        some_keys, some_values = keys[first : first + count], values[first : first + count]
        _score(scores, query, some_keys, scale)
        for g in range(group):
            top = max(tops[g], _largest(scores[g], count))
            shrunk = np.float32(math.exp(tops[g] - top))
            totals[g] = totals[g] * shrunk + _to_weights(scores[g], count, top)
            tops[g] = top
            _add(out[g], scores[g], some_values, shrunk)
    for g in range(group):
        for e in range(out.shape[1]):
            out[g, e] /= totals[g]


@compiled
def _attend(fields: Numbers, like: Word) -> None:
    """One thread's share of the heads of an `AttendCall`; every thread gets about as many keys."""
    call = AttendCall(*to_fixed_tuple(fields, _FIELDS))
    heads, window, threads = call.heads, call.window, 1
    number = 0
    if call.threads:
        number, threads = call_at(call.number), call_at(call.threads)
    query = words_at(call.query, (call.rows * heads, call.group, call.key_dim), np.float32(0))
    out = words_at(call.out, (call.rows * heads, call.group, call.value_dim), np.float32(0))
    places = words_at(call.places, (call.rows, PLACE), np.int64(0))
    scale = np.uint32(call.scale_bits).view(np.float32)
    group = call.group
    scratch = np.empty((group, _SEEN), np.float32), np.empty(group, np.float32), np.empty(group, np.float32)
    in_all = begun = 0
    for row in range(call.rows):
        in_all += min(places[row, SLOT] + 1, window) * heads
    for row in range(call.rows):
        keys_at, values_at, key_head, value_head, slot = places[row]
        first, stop = max(0, slot + 1 - window), slot + 1
        for head in range(heads):
            if begun * threads // in_all == number:
                keys = words_at(keys_at + head * key_head, (stop, call.key_dim), like)[first:]
                values = words_at(values_at + head * value_head, (stop, call.value_dim), like)[first:]
                at = row * heads + head
                _attend_head(out[at], query[at], keys, values, scale, scratch)
            begun += stop - first


def _attend_short(fields: int) -> None:
    _attend(words_at(fields, (_FIELDS,), np.int64(0)), np.uint16(0))


def _attend_long(fields: int) -> None:
    _attend(words_at(fields, (_FIELDS,), np.int64(0)), np.uint32(0))


def _write(keys: Words, values: Words, places: Numbers) -> None:
    """Writes keys (N, H, D) and values (N, H, E) of rows to their slots."""
    like = keys.dtype.type(0)
    for row in range(len(places)):
        for side in range(2):
            fresh = keys[row] if side == 0 else values[row]
            heads, dim = fresh.shape
            for head in range(heads):
                at = places[row, side] + head * places[row, 2 + side]
                to = words_at(at, (places[row, SLOT] + 1, dim), like)[places[row, SLOT]]
                for d in range(dim):
                    to[d] = fresh[head, d]


class CpuRowsKernels(NamedTuple):
    """`_write` compiled, and the address of a C function that takes the address of an `AttendCall`.

    `kept` must live as long as the address is used.
    """

    write: Callable[..., None]
    attend: int
    kept: object


def cpu_rows_kernels(*, is_short: bool) -> CpuRowsKernels:
    """The kernels for contexts in bfloat16 or float32."""
    fresh = types.Array(uint16 if is_short else uint32, 3, "C")
    write, attend = void(fresh, fresh, types.Array(int64, 2, "C")), void(int64)
    wanted = _attend_short if is_short else _attend_long
    try:
        written, attended = njit(write, nogil=True, cache=True)(_write), cfunc(attend, cache=True)(wanted)
    except RuntimeError:  # no folder for the cache: each process compiles it
        written, attended = njit(write, nogil=True)(_write), cfunc(attend)(wanted)
    assert attended.address is not None
    return CpuRowsKernels(written, attended.address, attended)
