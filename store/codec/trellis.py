"""Trellis coding: finds the codes of least squared error, each for every other level, which those before it tell.

A channel's tokens are one path through four states (Ungerboeck's code of rate 1/2). In half of them codes stand for the
even levels, in the others for the odd ones, and a code's lowest bit leads on. So a code costs as much as one of steps
twice as wide, while the path of the least squared error misses by a fifth less, squared, than those would. In the odd
states codes count downwards, so that all states have the same frequencies.

Levels are 0 to 15 and codes 0 to 7; both take four bits.
"""

from collections.abc import Iterable
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from store.record import Codes

LEVELS = 16
FURTHEST = 1.5  # steps between a number and the middle of its level, at most

_NEVER = np.float32(1e30)
_KINDS = np.arange(4, dtype=np.int8)[:, None, None]
_TOGETHER = 1 << 14  # numbers whose costs stay in a near cache
THRIFT = np.float32(0.03)  # of a squared error: what it costs to lie one step from the middle, by the square

Floats = NDArray[np.float32]


def trellis_codes(x: Floats, weights: Floats) -> Codes:
    """Codes of x (H, T, D), in steps from the lowest edge of level 0, by the least sum of weighted squared errors.

    No number is further than `FURTHEST` from its level. `weights` are (H, T, 1), or one for all.
    """
    heads, tokens, dim = x.shape
    rows = np.ascontiguousarray(x.transpose(1, 0, 2), np.float32).reshape(tokens, -1)
    counted = np.broadcast_to(weights.transpose(1, 0, 2), (tokens, heads, dim)).reshape(tokens, -1)
    nearest = np.clip(np.floor(rows), 0, LEVELS - 1)
    step = max(1, _TOGETHER // rows.shape[1])
    spans = [slice(start, start + step) for start in range(0, tokens, step)]
    costs = chain.from_iterable(_costs(rows[span], nearest[span], weights=counted[span]) for span in spans)
    kinds = _cheapest(costs, rows.shape[1])
    level = nearest.astype(np.int8)
    level += (kinds + 1 - level & 3) - 1
    codes = (level >> 1 ^ 7 * (level & 1)).astype(np.uint8)
    return np.ascontiguousarray(codes.reshape(tokens, heads, dim).transpose(1, 0, 2))


def _costs(x: Floats, nearest: Floats, *, weights: Floats) -> Floats:
    """What a token's levels of each kind (T, 4, N), their two lowest bits, cost more than its nearest one."""
    slope, inward = 2 * (x - nearest) - 1, THRIFT * (2 * nearest - (LEVELS - 1))
    above, below = weights * (1 - slope) + (THRIFT + inward), weights * (1 + slope) + (THRIFT - inward)
    above[nearest == LEVELS - 1] = below[nearest == 0] = _NEVER
    is_kind = (nearest.astype(np.int8) & 3 == _KINDS).astype(np.float32)
    found = is_kind[[3, 0, 1, 2]] * above + is_kind[[1, 2, 3, 0]] * below + is_kind[[2, 3, 0, 1]] * _NEVER
    return found.transpose(1, 0, 2)


def _cheapest(costs: Iterable[Floats], lanes: int) -> NDArray[np.int8]:
    """The kinds of the levels (T, N) on the cheapest paths.

    A state is two bits: the last one says which half of the levels it has, and becomes the first of the next state,
    whose last one is the first of this one, turned where the kind's upper bit is set.
    """
    sums = np.full((2, 2, lanes), _NEVER)  # by the last bit of a state, then by the first
    sums[0, 0] = 0
    came: list[NDArray[np.bool_]] = []  # from the state whose first bit is set; by first, then last
    for of_kind in costs:
        cost = of_kind.reshape(2, 2, lanes).transpose(1, 0, 2)  # by the lower bit, then by the upper
        clear, is_set = sums[:, :1] + cost, sums[:, 1:] + cost[:, ::-1]
        came.append(is_set < clear)
        sums = np.minimum(clear, is_set).transpose(1, 0, 2)
    kinds = np.empty((len(came), lanes), np.int8)
    state = sums.reshape(4, lanes).argmin(axis=0)
    last, first = state >= 2, state % 2 == 1
    for by, kind in zip(came[::-1], kinds[::-1], strict=True):
        left = by[0] ^ (by[0] ^ by[1]) & first
        before = left[0] ^ (left[0] ^ left[1]) & last
        np.add(first, np.int8(2) * (last ^ before), out=kind)
        last, first = first, before
    return kinds
