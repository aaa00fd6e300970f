"""Text and metadata of integrations as the service takes them: characters that can be encoded, values that JSON has."""

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import cast

from kvweave_client.options import Json

DEEPEST = 32  # what is nested deeper becomes text
WIDEST = 1023  # bits of a number that a float can still come near
CONVERSIONS = ("model_dump", "tolist")  # of pydantic's objects, and of numpy's numbers and arrays


def plain_text(text: str) -> str:
    """The text without characters that no request can hold. The same text becomes the same, wherever it stands."""
    if "\0" in text:
        text = text.replace("\0", "")
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def plain_metadata(metadata: Mapping[str, object]) -> Json:
    """The metadata as JSON has it: dates as ISO text, numbers as numbers, all else as text. Raises nothing."""
    return {plain_text(str(name)): _plain(value, (id(metadata),)) for name, value in metadata.items()}


def _plain(value: object, inside: tuple[int, ...]) -> object:
    """One value as JSON has it. `inside`: what it stands in, so that a value that holds itself has an end."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return _plain(value.value, inside)
    if isinstance(value, str):
        return plain_text(value)
    if isinstance(value, int | float | Decimal | Fraction):
        return _number(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes | bytearray):
        return plain_text(value.decode("utf-8", "replace"))
    return _many(value, inside)


def _many(value: object, inside: tuple[int, ...]) -> object:
    """The elements of a value that holds others; of any other value, what it says of itself."""
    if id(value) in inside or len(inside) > DEEPEST:
        return plain_text(str(value))
    within = (*inside, id(value))
    if isinstance(value, Mapping):
        entries = cast(Mapping[object, object], value)
        return {plain_text(str(name)): _plain(each, within) for name, each in entries.items()}
    if isinstance(value, set | frozenset):
        return sorted((_plain(each, within) for each in cast(Iterable[object], value)), key=repr)
    if isinstance(value, list | tuple):
        return [_plain(each, within) for each in cast(Iterable[object], value)]
    for name in () if isinstance(value, type) else CONVERSIONS:
        converted = getattr(value, name, None)
        if callable(converted):
            return _plain(cast(Callable[[], object], converted)(), within)
    return plain_text(str(value))


def _number(value: float | Decimal | Fraction) -> object:
    if isinstance(value, int):
        return int(value) if value.bit_length() <= WIDEST else hex(value)
    try:
        number = float(value)
    except (OverflowError, ValueError):
        return str(value)
    return number if math.isfinite(number) else str(value)
