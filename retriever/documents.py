"""Documents before and after cutting: drafts, parts, documents; what an id is, and a chunk's: a digest of its text."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from blake3 import blake3

from retriever.errors import DocumentError

_LONGEST_ID = 1100  # characters: as long as a user may name it, and what keeps it apart from others

Json = Mapping[str, object]  # what JSON can say


def check_id(name: str) -> None:
    """Raises DocumentError for a document's id that SQLite would cut or cannot keep, or that no path can say."""
    is_kept = 1 <= len(name) <= _LONGEST_ID and not any(each == "\0" or "\ud800" <= each <= "\udfff" for each in name)
    if not is_kept or name in (".", ".."):
        raise DocumentError(
            f"a document's id has 1 to {_LONGEST_ID:,} characters, no NUL and no half ones, and is neither . nor ..: "
            f"got {name[:80]!a}, so give it another"
        )


def chunk_id(text: str) -> str:
    """A digest of the text alone: the same text is the same chunk, whoever cut it. Lone surrogates are kept apart."""
    return chunk_id_of(text.encode("utf-8", "surrogatepass"))


def chunk_id_of(data: bytes) -> str:
    """The digest of a text in UTF-8."""
    return blake3(data).hexdigest(16)


@dataclass(frozen=True, slots=True)
class PageStart:
    """A page of a document's text begins at this character."""

    number: int
    start: int


@dataclass(frozen=True, slots=True)
class DocumentPart:
    """A chunk where it stands in a document. `text` is verbatim.

    `name`: what the user calls it. `start`: its first character in the document's text, if it was cut from one.
    `metadata` is laid over the document's.
    """

    text: str
    name: str = ""
    start: int | None = None
    page: int | None = None
    metadata: Json = field(default_factory=dict[str, object])

    @property
    def id(self) -> str:
        return chunk_id(self.text)


@dataclass(frozen=True, slots=True)
class Draft:
    """A document as it was put in: a `text` that is still to be cut, or `parts` that the user cut; never both.

    `id`: empty where the user gave none.
    """

    text: str = ""
    parts: tuple[DocumentPart, ...] = ()
    id: str = ""
    title: str = ""
    metadata: Json = field(default_factory=dict[str, object])
    pages: tuple[PageStart, ...] = ()


@dataclass(frozen=True, slots=True)
class Document:
    """A document that is cut."""

    id: str
    parts: tuple[DocumentPart, ...]
    title: str = ""
    metadata: Json = field(default_factory=dict[str, object])
