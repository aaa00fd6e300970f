"""Small documents, and what a library finds of them."""

from collections.abc import Callable, Sequence
from random import Random

from retriever.documents import Document, DocumentPart
from retriever.library import Library
from retriever.search import Hit, Mode, Query

Made = Callable[..., Library]

MODES: list[Mode] = ["lexical", "vector", "hybrid"]
WORDS = ["amber", "birch", "cedar", "delta", "ember", "frost", "grove", "heron", "inlet", "jetty", "knoll", "larch"]


def document(name: str, *texts: str, title: str = "", **metadata: object) -> Document:
    return Document(name, tuple(DocumentPart(text) for text in texts), title=title, metadata=metadata)


def some(count: int, *, seed: int = 0) -> list[Document]:
    """Documents of three chunks of six words."""
    chance = Random(seed)
    return [
        document(
            f"d{number}",
            *(f"{' '.join(chance.choices(WORDS, k=6))} {number} {place}" for place in range(3)),
            team=chance.choice(["red", "blue"]),
        )
        for number in range(count)
    ]


def texts(hits: Sequence[Hit]) -> list[str]:
    return [hit.passage.text for hit in hits]


def found(library: Library, text: str, mode: Mode | None = None, *, limit: int = 1000) -> set[str]:
    return set(texts(library.search(Query(text, limit, mode))))
