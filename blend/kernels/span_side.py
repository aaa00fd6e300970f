"""The columns of the table that `gpu_place_kernel` is told by: what fills it needs no compiler to know them."""

from typing import NamedTuple

from store.rows import ADDRESS, IS_PINNED, NBYTES, START


class SpanSide(NamedTuple):
    """What a layer's keys, or its values, have in the table: where numbers of a head begin, and how they turn."""

    numbers: int
    heads: int
    dim: int
    by_head: int
    by_slot: int
    turning_at: int = 0
    pairs: int = 0
    apart: int = 0
    hop: int = 0
    cos: int = 0
    sin: int = 0
    sign: int = 1


FIRST_SIDE, BOTH_SIDES = 2, 2 * len(SpanSide._fields)  # where in the table sides begin, and what a layer has of them
# In a row as it is sent: its first byte, how many bytes behind the table's; how many tokens are placed; the slot of the
# first; and where in the table its layer's sides begin.
ROW_AT, KEPT, SLOT, SIDES = ADDRESS, NBYTES, START, IS_PINNED
