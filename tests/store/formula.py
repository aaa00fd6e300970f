"""The sums that stored rows stand for, made code by code: slow, and nothing of the product's own way."""

import numpy as np

from store.record import codes_per_byte
from store.rows import LAYOUT_AT, START, TOKENS, FrameLayout, StoredRows, data_of, trellis_levels


def parts_of(stored: StoredRows) -> np.ndarray:
    """The rows of all parts that have tokens."""
    rows = stored.rows.reshape(-1, stored.rows.shape[2])
    return rows[rows[:, TOKENS] > 0]


def spans_of(row: np.ndarray) -> list[tuple[int, int]]:
    """First token and length of what shares the keys' steps in a part."""
    layout = FrameLayout(*row[LAYOUT_AT:])
    starts = range(0, layout.tokens, layout.step)
    return [(int(row[START]) + start, int(min(layout.step, layout.tokens - start))) for start in starts]


def numbers_at(planes: np.ndarray, count: int, nbytes: int) -> np.ndarray:
    """So many whole numbers, of so many planes."""
    found = np.zeros(count, np.int64)
    for byte in range(nbytes):
        found += planes[byte * count : (byte + 1) * count].astype(np.int64) << 8 * byte
    return found


def formula(row: np.ndarray, shape: tuple[int, int, int, int], sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sums that a part stands for, code by code, in float32."""
    data, layout, found = data_of(row), FrameLayout(*row[LAYOUT_AT:].tolist()), list[np.ndarray]()
    key_heads, key_dim, value_heads, value_dim = shape
    spans = [(start - int(row[START]), length) for start, length in spans_of(row)]
    keys = len(spans) * key_heads * key_dim
    key_steps = sizes[numbers_at(data, keys, 2)].reshape(-1, key_heads, 1, key_dim)
    signed = numbers_at(data[layout.middles :], keys, 4).reshape(key_steps.shape)
    middles = (
        np.where(signed % 2, -(signed // 2) - 1, signed // 2) * key_steps.astype(float) * 2.0 ** (layout.key_bits - 4)
    )
    value_steps = sizes[numbers_at(data[layout.value_steps :], value_heads * layout.tokens, 2)].reshape(
        value_heads, -1, 1
    )
    for heads, dim, bits, place, in_trellis in (
        (key_heads, key_dim, layout.key_bits, layout.key_codes, layout.key_trellis),
        (value_heads, value_dim, layout.value_bits, layout.value_codes, layout.value_trellis),
    ):
        per_byte, parts, at = codes_per_byte(bits), list[np.ndarray](), place
        for span, (start, length) in enumerate(spans):
            packed = data[at : at + heads * dim * -(-length // per_byte)].reshape(heads, dim, -1)
            at += packed.size
            codes = np.zeros((length, heads, dim), np.uint8)
            for token in range(length):
                byte, shift = divmod(token, per_byte)
                codes[token] = packed[:, :, byte].astype(int) // 2 ** (8 // per_byte * shift) % 2 ** (8 // per_byte)
            if in_trellis:
                codes = trellis_levels(codes.reshape(length, -1)).reshape(codes.shape)
            wide = codes.transpose(1, 0, 2).astype(np.float32) - np.float32((2**bits - 1) / 2)
            if place == layout.key_codes:
                parts.append(wide * key_steps[span] + middles[span].astype(np.float32))
            else:
                parts.append(wide * value_steps[:, start : start + length])
        found.append(np.concatenate(parts, axis=1))
    return found[0], found[1]
