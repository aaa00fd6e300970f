"""Hashes by which a text is found inside another (marks): a short text has none. Knows no rows and no prompts.

A block of 2^k bytes hashes as a tree: eight bytes are one word, and a block is its left half combined with its right
half. So the hashes of all places of a text, one level after the other, take a few array operations a level. A text of
2^k bytes or more, and less than twice that, has level k: its first and its last block of that size cover all of it, and
with its length they stand for it. Hashes only propose; who uses them compares the texts.

Catalogs store marks. A change of any number below makes what they hold useless.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

MIN_BYTES = 16  # shorter texts occur everywhere by chance

_WORD, _LEFT, _MIX = (np.uint64(odd) for odd in (0x94D049BB133111EB, 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9))
_HALF = np.uint64(32)
_WORD_LEVEL = 3
_PIECE_BYTES = 4 << 20  # of text that is hashed at a time


@dataclass(frozen=True, slots=True)
class Mark:
    """The mark of a text in a catalog. The hashes are signed, as SQLite's integers are."""

    head: int
    tail: int
    nbytes: int


def stripped(text: str) -> bytes:
    """The bytes of a text to search for. Lone surrogates stay distinct."""
    return text.strip().encode("utf-8", "surrogatepass")


def marks(texts: Sequence[str]) -> list[Mark | None]:
    """The mark of each text, None where it is too short to be recognised."""
    encoded = [stripped(text) for text in texts]
    levels: dict[int, list[int]] = {}
    for number, data in enumerate(encoded):
        if len(data) >= MIN_BYTES:
            levels.setdefault(level_of(len(data)), []).append(number)
    found: list[Mark | None] = [None] * len(encoded)
    for level, numbers in levels.items():
        step = max(1, _PIECE_BYTES >> level)
        for first in range(0, len(numbers), step):
            piece = numbers[first : first + step]
            for number, made in zip(piece, _marks([encoded[each] for each in piece], level), strict=True):
                found[number] = made
    return found


def _marks(encoded: list[bytes], level: int) -> Iterator[Mark]:
    """The marks of texts that all have this level."""
    size = 1 << level
    heads = _trees(b"".join([data[:size] for data in encoded]), level)
    tails = _trees(b"".join([data[-size:] for data in encoded]), level)
    for head, tail, data in zip(heads, tails, encoded, strict=True):
        yield Mark(head, tail, len(data))


def level_of(nbytes: int) -> int:
    """The level of so many bytes: two to this power is the size of the blocks that cover them."""
    return nbytes.bit_length() - 1


def _trees(blocks: bytes, level: int) -> list[int]:
    hashes = _words(np.frombuffer(blocks, dtype="<u8"))
    for _ in range(_WORD_LEVEL, level):
        hashes = _combine(hashes[0::2], hashes[1::2])
    return hashes.view(np.int64).tolist()


def block_hashes(data: bytes) -> Iterator[tuple[int, Hashes]]:
    """Each level of a mark that fits, from the lowest up, with the hash of the block that begins at each byte."""
    if len(data) < MIN_BYTES:
        return
    level = _WORD_LEVEL
    hashes = _words(np.ndarray(len(data) - 7, dtype="<u8", buffer=data, strides=(1,)))
    while len(hashes) > 1 << level:
        hashes = _combine(hashes[: -(1 << level)], hashes[1 << level :])
        level += 1
        yield level, hashes


def _words(words: Hashes) -> Hashes:
    return _mixed(words * _WORD)


def _combine(left: Hashes, right: Hashes) -> Hashes:
    """The hash of two halves. Which half is which matters: texts of the same words in another order differ."""
    hashes = left * _LEFT
    hashes += right
    return _mixed(hashes)


def _mixed(hashes: Hashes) -> Hashes:
    """Mixes hashes in place. The high bits are the good ones: tables take their slots from them."""
    hashes ^= hashes >> _HALF
    hashes *= _MIX
    return hashes
