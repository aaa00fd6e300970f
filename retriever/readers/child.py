"""The inside of an isolated parser: limits first, then one content in and one message out. Knows no format.

It imports nothing but the standard library, so that a child starts as fast as its parser does.
"""

import json
import logging
import resource
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class Found:
    """The message; `isolated.Answer` reads it."""

    pages: Sequence[str] = ()
    problems: list[str] = field(default_factory=list[str])
    title: str = ""
    author: str = ""


def serve(parse: Callable[[bytes], Found]) -> None:
    """Answer with what `parse` finds. What it raises ends the process; the last line says what it was."""
    memory_bytes, cpu_s, text_bytes = (int(each) for each in sys.argv[1:])
    _limit(memory_bytes, cpu_s)
    logging.disable()
    try:
        message = _message(parse(sys.stdin.buffer.read()), text_bytes)
    except MemoryError:
        message = _refusal(f"its parser needs more than {memory_bytes >> 20:,} MiB of memory: split it")
    except RecursionError:
        message = _refusal("it is nested deeper than its parser can follow: save it anew")
    sys.stdout.buffer.write(message)


def _message(found: Found, text_bytes: int) -> bytes:
    length = sum(map(len, found.pages))
    if length > text_bytes:
        return _refusal(f"its text has {length:,} characters, more than {text_bytes:,}: split it")
    return json.dumps(asdict(found), ensure_ascii=False).encode("utf-8")


def _refusal(reason: str) -> bytes:
    return json.dumps(asdict(Found(problems=[reason]))).encode()


def _limit(memory_bytes: int, cpu_s: int) -> None:
    limits = (
        (resource.RLIMIT_AS, memory_bytes, memory_bytes),
        (resource.RLIMIT_CPU, cpu_s, cpu_s + 1),  # the first ends it with a signal that says why
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_FSIZE, 0, 0),
    )
    for kind, soft, hard in limits:
        with suppress(ValueError, OSError):  # a lower limit is set already, or the system knows no such limit
            resource.setrlimit(kind, (soft, hard))


def clean(text: str) -> str:
    """What a parser made up cannot be stored: without NULs, and with a mark for half a surrogate pair."""
    return text.replace("\0", "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
