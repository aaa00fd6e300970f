"""What compiled code on a CPU is told to attend. Needs no compiler.

Letters: `N` rows, `H` kv heads, `G` query heads of each, `D` and `E` numbers of a key and of a value.
"""

from typing import NamedTuple

PLACE, SLOT = 5, 4  # numbers of a row's place, and which is its slot


class AttendCall(NamedTuple):
    """One layer of a decoding step, as whole numbers that lie side by side.

    Addresses of queries (N, H, G, D), of what is found (N, H, G, E), and of places (N, PLACE): where a context's keys
    and values begin, how many bytes their heads are apart, and the row's slot. A row sees so many slots at most, up to
    its own. `scale_bits` are those of a float32. The last two are addresses of C functions that return the number of
    the thread that asks, and of how many share the call; zero where one thread is alone.
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
