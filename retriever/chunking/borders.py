"""Finds borders inside long lines: at words where there are any, else between characters. Knows no tokens, no blocks.

A border is where a hash of the next few characters is the greatest within `radius` characters, so that an edit
moves only the borders near it. Where nothing is greatest, as in one letter a million times, borders stand in steps.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from retriever.chunking.blocks import BorderLevel

_WINDOW = 1 << 20
_AHEAD = 8  # characters that a border's hash covers
_TABLE = 0x10000
_SPACES = np.array([chr(code).isspace() for code in range(_TABLE)])
_JOINERS = np.zeros(_TABLE, bool)  # no border before these: marks, joiners and variants of the character before them
_JOINERS[0x300:0x370] = _JOINERS[0x200C:0x200E] = _JOINERS[0xFE00:0xFE10] = True

Codes = NDArray[np.uint32]


def thin_borders(text: str, start: int, *, end: int, radius: int) -> Iterator[tuple[int, BorderLevel]]:
    """Borders inside text[start:end] in order. They stand `radius` to 4 × `radius` characters apart, most of them.

    `radius` is a power of two.
    """
    last = start
    for place, level in _found(text, start, end=end, radius=radius):
        yield from _steps(text, last, end=place, radius=radius)
        yield place, level
        last = place
    yield from _steps(text, last, end=end, radius=radius)


def _steps(text: str, start: int, *, end: int, radius: int) -> Iterator[tuple[int, BorderLevel]]:
    if end - start > 4 * radius:
        for place in range(start + 2 * radius, end - radius, 2 * radius):
            yield place, BorderLevel.SPACE if text[place].isspace() else BorderLevel.CHARACTER


def _found(text: str, start: int, *, end: int, radius: int) -> Iterator[tuple[int, BorderLevel]]:
    margin = radius + _AHEAD
    for window in range(start, end, _WINDOW):
        stop = min(window + _WINDOW, end)
        first, last = max(start, window - margin), min(end, stop + margin)
        ranks = _ranks(text[first:last])
        ranks[0] = 0
        inside = _greatest(ranks, radius)
        inside = inside[(inside >= window - first) & (inside < stop - first)]
        for place, rank in zip(inside.tolist(), ranks[inside].tolist(), strict=True):
            yield first + place, BorderLevel.WORD if rank >> 31 else BorderLevel.CHARACTER


def _ranks(text: str) -> Codes:
    """The hash of what follows each character's border, above it one bit for a word's begin; 0 is no border."""
    codes: Codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    known = np.minimum(codes, _TABLE - 1)
    is_space = _SPACES[known]
    behind_space = np.concatenate([[False], is_space[:-1]])
    padded = np.concatenate([codes, np.zeros(_AHEAD, np.uint32)])
    ranks: Codes = np.zeros(len(codes), np.uint32)
    for ahead in range(_AHEAD):
        ranks = (ranks + padded[ahead : ahead + len(codes)]) * np.uint32(0x9E3779B1)
        ranks ^= ranks >> np.uint32(15)
    ranks = (ranks >> np.uint32(1)) | np.uint32(1)
    ranks |= behind_space.astype(np.uint32) << np.uint32(31)
    ranks[is_space | _JOINERS[known]] = 0
    return ranks


def _greatest(ranks: Codes, radius: int) -> NDArray[np.intp]:
    """Where a rank exceeds the `radius` ones before it and is not exceeded by the `radius` ones behind it."""
    padded = np.concatenate([np.zeros(radius, np.uint32), ranks, np.zeros(radius, np.uint32)])
    width = 1
    while width < radius:
        padded = np.maximum(padded[:-width], padded[width:])
        width *= 2
    before, behind = padded[: len(ranks)], padded[radius + 1 : radius + 1 + len(ranks)]
    return np.flatnonzero((ranks > before) & (ranks >= behind))
