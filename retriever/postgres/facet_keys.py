"""Values that filters compare, as bytes that are ordered as SQLite orders them. Knows no table.

An index of PostgreSQL takes no long values. What is longer keeps its beginning and a digest: it is equal to what it
equals, and among texts with the same long beginning its order is any.
"""

import math
import struct
from typing import Final

from blake3 import blake3

NUMBER: Final = b"n"
TEXT: Final = b"t"
OTHER: Final = b"b"  # true, false and null
LONGEST: Final = 1200  # bytes of a value
LONGEST_FIELD: Final = 400


def facet_key(value: object) -> bytes:
    match value:
        case bytes():
            return OTHER + value
        case str():
            return TEXT + _short(value.encode(), LONGEST)
        case int() | float():
            return NUMBER + _number(value)
        case _:
            raise AssertionError(f"no value of a filter: {type(value)}")


def field_key(name: object) -> str:
    """The name of a field, shortened so that it can be told from all others."""
    assert isinstance(name, str), type(name)
    return name if len(name) <= LONGEST_FIELD else name[:LONGEST_FIELD] + blake3(name.encode()).hexdigest()


def _short(data: bytes, longest: int) -> bytes:
    return data if len(data) <= longest else data[:longest] + blake3(data).digest()


def _number(value: int | float) -> bytes:
    """The largest double that is not above it, made to order as bytes do, and what is left; integers are kept whole."""
    near = float(value)
    if near > value:
        near = math.nextafter(near, -math.inf)
    left = value - int(near) if isinstance(value, int) else 0
    [bits] = struct.unpack(">q", struct.pack(">d", near + 0.0))  # there is one zero
    ordered = bits ^ (-1 if bits < 0 else -(1 << 63))
    return struct.pack(">QQ", ordered & (1 << 64) - 1, left)
