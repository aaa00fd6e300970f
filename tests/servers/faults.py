"""What can go wrong with one HTTP exchange, as changes of the server's answer. Knows no sockets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto
from http import HTTPStatus
from typing import Protocol

S3_CODES = {403: "AccessDenied", 404: "NoSuchKey", 412: "PreconditionFailed", 500: "InternalError", 503: "SlowDown"}


class Ending(Enum):
    """What the connection does once the answer's bytes are out."""

    KEEP = auto()
    CLOSE = auto()
    HANG = auto()
    RESET = auto()


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes to the client. `length` is the Content-Length promised: a fault may send fewer bytes of `body`."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    length: str
    ending: Ending = Ending.KEEP

    @property
    def is_silent(self) -> bool:
        """No byte of it is sent, not even the status line."""
        return self.status == 0


SILENCE = Answer(status=0, headers=(), body=b"", length="0")


class Change(Protocol):
    """Turns the server's answer into the one that the client gets."""

    def __call__(self, answer: Answer, /) -> Answer: ...


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong with one request.

    `status`, `hang` and `reset` strike before the server sees the request; `.after_apply()` makes them strike once the
    server has done its work, so that only the answer is lost. The others change the server's answer.
    """

    change: Change
    reaches_server: bool = True

    def after_apply(self) -> Fault:
        return replace(self, reaches_server=True)

    @staticmethod
    def none() -> Fault:
        return Fault(lambda answer: answer)

    @staticmethod
    def status(code: int, name: str | None = None) -> Fault:
        """A refusal; `name` is S3's word for it where the status has several."""
        return Fault(lambda _: refusal(code, name), reaches_server=False)

    @staticmethod
    def hang() -> Fault:
        """Never answers: the connection stays open until the client leaves or the proxy closes."""
        return Fault(lambda _: replace(SILENCE, ending=Ending.HANG), reaches_server=False)

    @staticmethod
    def reset() -> Fault:
        return Fault(lambda _: replace(SILENCE, ending=Ending.RESET), reaches_server=False)

    @staticmethod
    def cut_body(after: int) -> Fault:
        """Closes the connection `after` bytes into the body; Content-Length promises all of it."""
        return Fault(lambda answer: _broken_off(answer, after, Ending.CLOSE))

    @staticmethod
    def stall_body(after: int) -> Fault:
        """Falls silent `after` bytes into the body, with the connection open."""
        return Fault(lambda answer: _broken_off(answer, after, Ending.HANG))

    @staticmethod
    def shorten_body(to: int) -> Fault:
        """A well-formed answer with too few bytes: Content-Length agrees with them, Content-Range is left as it was."""
        return Fault(lambda answer: _shortened(answer, to))

    @staticmethod
    def flip_byte(at: int) -> Fault:
        """Inverts the bits of one byte of the body; a body too short for `at` stays as it is."""
        return Fault(lambda answer: replace(answer, body=_flipped(answer.body, at)))

    @staticmethod
    def drop_etag() -> Fault:
        return Fault(lambda answer: replace(answer, headers=_without(answer.headers, "etag")))


def refusal(code: int, name: str | None = None) -> Answer:
    """An error as S3 words it."""
    name = name or S3_CODES.get(code) or HTTPStatus(code).phrase.replace(" ", "")
    body = f"<Error><Code>{name}</Code><Message>injected</Message></Error>".encode()
    return Answer(code, (("Content-Type", "application/xml"),), body, str(len(body)))


def _without(headers: tuple[tuple[str, str], ...], name: str) -> tuple[tuple[str, str], ...]:
    return tuple((key, value) for key, value in headers if key.lower() != name)


def _broken_off(answer: Answer, after: int, ending: Ending) -> Answer:
    # A whole answer stays as it is: its client would reuse the connection, and the fault would strike the next request.
    if after >= len(answer.body):
        return answer
    return replace(answer, body=answer.body[:after], ending=ending)


def _shortened(answer: Answer, to: int) -> Answer:
    # A HEAD answer has no body and keeps the length that it tells.
    if to >= len(answer.body):
        return answer
    return replace(answer, body=answer.body[:to], length=str(to))


def _flipped(body: bytes, at: int) -> bytes:
    if at >= len(body):
        return body
    return body[:at] + bytes([body[at] ^ 0xFF]) + body[at + 1 :]
