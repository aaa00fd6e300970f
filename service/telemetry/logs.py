"""Log lines: one per record, with fields, for people or for machines. Knows no HTTP; logs no text of users.

A message is constant; what varies is a field: `log.info("stored", extra=fields(chunks=3))`.
"""

import json
import logging
import re
import sys
import traceback
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, TextIO

Scalar = str | int | float | bool | None
Style = Literal["text", "json"]

OURS = ("service", "blend", "retriever", "store", "uvicorn")  # all others speak from WARNING on
LETTERS = 200
MESSAGE_LETTERS = 1000
FRAMES = 40
PLAIN = re.compile(r"[\w./:@{}+-]+", re.ASCII)
FIELDS = "kvweave_fields"


@dataclass(frozen=True, slots=True)
class Notes:
    """Fields that the handling of one request adds to its log line."""

    fields: dict[str, Scalar] = field(default_factory=dict[str, Scalar])


request_id: ContextVar[str] = ContextVar("request_id", default="")
_notes: ContextVar[Notes | None] = ContextVar("notes", default=None)
_reported: ContextVar[BaseException | None] = ContextVar("reported", default=None)


def setup_logs(level: str, style: Style, *, stream: TextIO | None = None) -> None:
    """Give all loggers one format on one stream, standard error by default. A second call replaces the first."""
    levels = logging.getLevelNamesMapping()
    if level.upper() not in levels:
        raise ValueError(f"the log level is one of {', '.join(levels).lower()}, got {level!r}")
    threshold = levels[level.upper()]
    handler = _Handler(stream or sys.stderr)
    handler.setFormatter(_JsonFormatter() if style == "json" else _TextFormatter())
    root = logging.getLogger()
    root.handlers = [*(each for each in root.handlers if not isinstance(each, _Handler)), handler]
    root.setLevel(max(threshold, logging.WARNING))
    for name in OURS:
        logging.getLogger(name).setLevel(threshold)
    _adopt_uvicorn()


@contextmanager
def noting(identifier: str) -> Generator[Notes]:
    """Collect the notes of one request inside the block, and put its id on all of its lines."""
    notes = Notes()
    tokens = request_id.set(identifier), _notes.set(notes)
    try:
        yield notes
    finally:
        request_id.reset(tokens[0])
        _notes.reset(tokens[1])


def note(**values: Scalar) -> None:
    """Add fields to the line of the current request. Outside of a request they are dropped."""
    notes = _notes.get()
    if notes is not None:
        notes.fields.update(values)


def fields(**values: Scalar) -> dict[str, object]:
    """The `extra` of a logging call."""
    return {FIELDS: values}


def tell_once(error: BaseException) -> None:
    """Mark an exception as logged, or not worth a line, so that the server does not log it again for this request."""
    _reported.set(error)


def guard(value: object) -> Scalar:
    """A value fit for a log line: short, and a scalar."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return _cut(str(value), LETTERS)
    return f"<{type(value).__name__}>"


class _Handler(logging.StreamHandler[TextIO]):
    """A handler class of its own, so that a second setup recognises it."""


class _JsonFormatter(logging.Formatter):
    """Writes a record as one JSON object on a line."""

    def format(self, record: logging.LogRecord) -> str:
        line = _describe(record)
        error = _error_of(record)
        if error is not None:
            line["traceback"] = "\n".join(_trace(error))
        return json.dumps({name: _finite(value) for name, value in line.items()}, allow_nan=False)


class _TextFormatter(logging.Formatter):
    """Writes `time LEVEL message key=value`; a traceback follows, indented, so that none of it passes for a line."""

    def format(self, record: logging.LogRecord) -> str:
        line = _describe(record)
        head = f"{line.pop('time')} {str(line.pop('level')).upper()} {_plain(line.pop('message'))}"
        text = " ".join([head, *(f"{name}={_spell(value)}" for name, value in line.items())])
        error = _error_of(record)
        if error is not None:
            text = "\n    ".join([text, *(_plain(each) for each in _trace(error))])
        return text


def _describe(record: logging.LogRecord) -> dict[str, Scalar]:
    at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    line: dict[str, Scalar] = {"time": at, "level": record.levelname.lower()}
    line |= {"message": _cut(record.getMessage().strip(), MESSAGE_LETTERS), "logger": record.name}
    if identifier := request_id.get():
        line["request_id"] = identifier
    given: dict[str, object] = getattr(record, FIELDS, {})
    return line | {name: guard(value) for name, value in given.items() if name not in line}


def _adopt_uvicorn() -> None:
    for name in ("uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [], True
    errors = logging.getLogger("uvicorn.error")
    errors.setLevel(logging.NOTSET)
    if _is_news not in errors.filters:
        errors.addFilter(_is_news)
    access = logging.getLogger("uvicorn.access")
    access.handlers, access.propagate = [], False


def _is_news(record: logging.LogRecord) -> bool:
    error = _error_of(record)
    return error is None or error is not _reported.get()


def _error_of(record: logging.LogRecord) -> BaseException | None:
    return record.exc_info[1] if record.exc_info else None


def _trace(error: BaseException, known: frozenset[int] = frozenset()) -> Iterator[str]:
    """Frames, causes first. Messages may quote a user's text: they are shown, cut, only when debugging."""
    known |= {id(error)}
    earlier = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if earlier is not None and id(earlier) not in known:
        yield from _trace(earlier, known)
        yield "and then:"
    for frame in traceback.format_tb(error.__traceback__, limit=-FRAMES):
        yield from frame.rstrip().splitlines()
    name = type(error).__qualname__
    yield f"{name}: {_cut(str(error), LETTERS)}" if logging.getLogger(OURS[0]).isEnabledFor(logging.DEBUG) else name
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
            yield from (f"| {each}" for each in _trace(member, known))  # pyright: ignore[reportUnknownArgumentType]


def _cut(text: str, letters: int) -> str:
    return text if len(text) <= letters else f"{text[: letters - 1]}…"


def _plain(value: object) -> str:
    """Text without line ends and without control characters for a terminal."""
    text = str(value)
    return text if text.isprintable() else json.dumps(text)[1:-1]


def _spell(value: Scalar) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = "-" if value is None else str(value)
    if PLAIN.fullmatch(text):
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())


def _finite(value: Scalar) -> Scalar:
    return str(value) if isinstance(value, float) and value - value != 0 else value
