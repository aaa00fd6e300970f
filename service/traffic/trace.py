"""Reads block traces: JSON lines with a request each, as Mooncake publishes them. Sends nothing."""

import math
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec

from service.errors import Invalid


class _Line(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int | str]


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """A request of a trace. Equal blocks are equal texts; `last_share` is how much of a block its last one holds."""

    at_s: float
    blocks: tuple[int | str, ...]
    last_share: float
    answer_tokens: int


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in the order of their times, and the tokens of their blocks."""

    entries: tuple[TraceEntry, ...]
    block_tokens: int


def read_trace(path: Path, *, most: int) -> Trace:
    """The first requests of a trace, at most so many. Raises Invalid for a line that is none, with its number."""
    lines: list[_Line] = []
    with path.open("rb") as file:
        for number, raw in enumerate(islice((line for line in file if line.strip()), most), start=1):
            lines.append(_parsed(raw, f"{path}, line {number}"))
    if not lines:
        raise Invalid(f"{path} holds no request: name a trace of JSON lines")
    lines.sort(key=lambda line: line.timestamp)
    tokens = max(math.ceil(line.input_length / len(line.hash_ids)) for line in lines)
    return Trace(tuple(_entry(line, block_tokens=tokens) for line in lines), tokens)


def _parsed(raw: bytes, place: str) -> _Line:
    try:
        line = msgspec.json.decode(raw, type=_Line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(
            f"{place} is no request of a trace ({error}): each is a JSON object with timestamp in milliseconds, "
            "input_length, output_length and hash_ids"
        ) from None
    if not line.hash_ids or line.input_length < 1 or line.output_length < 0 or not math.isfinite(line.timestamp):
        raise Invalid(f"{place}: a request has at least one block and one token: leave the line out")
    return line


def _entry(line: _Line, *, block_tokens: int) -> TraceEntry:
    last = line.input_length - block_tokens * (len(line.hash_ids) - 1)
    share = min(1.0, max(last, 1) / block_tokens)
    return TraceEntry(line.timestamp / 1000, tuple(line.hash_ids), share, max(1, line.output_length))
