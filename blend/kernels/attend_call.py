"""The arguments of the compiled attention on a CPU. Needs no compiler.

Letters: `N` rows, `H` kv heads, `G` query heads of each, `D` and `E` numbers of a key and of a value.
"""

from typing import NamedTuple

PLACE, SLOT = 5, 4  # numbers of a row's place, and which is its slot


class AttendCall(NamedTuple):
    """One layer of a decoding step, as adjacent integers.

    Addresses of queries (N, H, G, D), of the output (N, H, G, E), and of places (N, PLACE): where a context's keys and
    values begin, the strides of their heads in bytes, and the row's slot. A row sees at most `window` slots, up to its
    own. `scale_bits` are the bits of a float32. The last two are addresses of C functions: one returns the number of
    the calling thread, one the number of threads that share the call; both are zero for a single thread.
    """

    query: int
    out: int
    places: int
    rows: int
    heads: int
    group: int
    key_dim: int
    value_dim: int
    window: int
    scale_bits: int
    number: int
    threads: int
