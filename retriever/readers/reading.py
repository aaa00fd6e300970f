"""The result of reading a file: drafts and problems; the largest file; refuses a text that is blank or has a NUL."""

from dataclasses import dataclass

from retriever.documents import Draft

MAX_BYTES = 512 << 20  # of a file
MAX_TITLE = 1000  # characters, as in the API


class UnreadableFile(ValueError):
    """Raised where nothing, or a whole document, cannot be read; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class ReadingProblem:
    """What was not read, and why. `place`: the file, or "file:line", or "file[item]"."""

    place: str
    reason: str


@dataclass(frozen=True, slots=True)
class Reading:
    """What a file became. Both may be filled: a file that is read in part has drafts and problems."""

    drafts: tuple[Draft, ...] = ()
    problems: tuple[ReadingProblem, ...] = ()


def require_text(text: str, what: str = "the file") -> str:
    """The text as it is; raises for one that is blank or cannot be stored."""
    if not text or text.isspace():
        raise UnreadableFile(f"{what} has no text: leave it out, or fill it")
    at = text.find("\0")
    if at >= 0:
        raise UnreadableFile(f"{what} has a NUL character at offset {at}: a text has none, so take it out")
    return text


def megabytes(count: int) -> str:
    """A number of bytes as people write it."""
    return f"{count / (1 << 20):,.0f} MiB"
