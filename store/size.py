"""Parses numbers of bytes as people write them (4096, 500MB, 1.5GiB), and refuses what is none."""

import re

from store.errors import UrlError

_UNITS = {
    "": 1,
    "k": 1000,
    "m": 1000**2,
    "g": 1000**3,
    "t": 1000**4,
    "ki": 1 << 10,
    "mi": 1 << 20,
    "gi": 1 << 30,
    "ti": 1 << 40,
}


def parse_size(text: str, what: str) -> int:
    """Bytes of `4096`, `200GB`, `1.5GiB`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?", text.strip(), re.IGNORECASE)
    size = int(float(match[1]) * _UNITS[(match[2] or "").lower()]) if match else 0
    if size < 1:
        raise UrlError(f"{what} must be a size such as 4096, 500MB or 20GiB, got {text!r}")
    return size
