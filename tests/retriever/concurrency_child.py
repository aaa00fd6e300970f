"""Generations of documents that follow each other whole, and a reader that never sees but one of them.

    python -m tests.retriever.concurrency_child FOLDER SEED LAST

reads until it has seen the last generation. Says `ready` after its first look, then how often it looked.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from random import Random

from retriever import nearest
from retriever.catalog.sqlite import SqliteCatalog
from retriever.documents import Document, DocumentPart
from retriever.embedders.embedding import Embedders
from retriever.filter_condition import EVERYTHING, FilterCondition, condition
from retriever.library import Library
from retriever.search import Hit, Query
from retriever.types import DocumentRow, Passage
from tests.retriever.fakes import WordEmbedder

DOCUMENTS, PARTS, CYCLE = 6, 3, 12
OWN = DOCUMENTS * PARTS  # chunks of one generation; one more is shared by all
SHARED = "a footer that every document of all times has"
RED = condition({"team": "red"})


def text(generation: int, number: int, part: int) -> str:
    """Texts come back after a while: chunks that were gone are there again."""
    return f"common words of generation{generation % CYCLE} in document{number} and part{part}"


PROMPT = "\n".join(
    [text(each, n, p) for each in range(CYCLE) for n in range(DOCUMENTS) for p in range(PARTS)] + [SHARED]
)


def documents(generation: int) -> list[Document]:
    """The first half replace those before them, the others have names of their own."""
    return [
        Document(
            name(generation, number),
            (DocumentPart(SHARED), *(DocumentPart(text(generation, number, part)) for part in range(PARTS))),
            metadata={"generation": generation, "team": "red" if number % 2 else "blue"},
        )
        for number in range(DOCUMENTS)
    ]


def name(generation: int, number: int) -> str:
    return f"d{number}" if number < DOCUMENTS // 2 else f"d{number} of {generation}"


def write(library: Library, generation: int) -> None:
    """In one change: every third time what was staged before."""
    made = documents(generation)
    former = [name(generation - 1, number) for number in range(DOCUMENTS // 2, DOCUMENTS)]
    if generation % 3 == 0:
        staged = [library.stage_all([each], collection="c")[0] for each in made]
        with library.catalog.change() as change:
            change.delete(former)
            for version in staged:
                change.serve(version)
        return
    parts = {part.id: part.text for each in made for part in each.parts}
    vectors = WordEmbedder().passages(list(parts.values()))
    with library.catalog.change() as change:
        change.delete(former)
        change.put(made, collection="c")
        change.put_vectors(list(parts), vectors, embedder=WordEmbedder().name)


class Reader:
    """Looks in many ways, and sees one generation each time, which is never older than the one before."""

    def __init__(self, library: Library, seed: int) -> None:
        self.generation = -1
        self.looks = 0
        self._library = library
        self._random = Random(seed)
        self._ways: list[Callable[[FilterCondition], None]] = [
            self._by_words,
            self._by_vectors,
            self._by_both,
            self._inside,
            self._listed,
        ]

    def look(self) -> None:
        self.looks += 1
        self._random.choice(self._ways)(self._random.choice([EVERYTHING, RED]))

    def _saw(self, seen: Sequence[Passage | DocumentRow], count: int) -> None:
        found = sorted({int(str(each.metadata["generation"])) for each in seen})
        assert (len(seen), len(found)) == (count, 1), f"{len(seen)} of {count}, of generations {found}"
        assert found[0] >= self.generation, f"{found[0]} after {self.generation}"
        self.generation = found[0]

    def _own(self, allowed: FilterCondition) -> int:
        return OWN // 2 if allowed is RED else OWN

    def _hits(self, hits: Sequence[Hit], count: int) -> None:
        self._saw([hit.passage for hit in hits], count)

    def _by_words(self, allowed: FilterCondition) -> None:
        self._hits(self._library.search(Query("common words", 1000, "lexical", allowed)), self._own(allowed))

    def _by_vectors(self, allowed: FilterCondition) -> None:
        self._hits(self._library.search(Query("common words", 1000, "vector", allowed)), self._own(allowed) + 1)

    def _by_both(self, allowed: FilterCondition) -> None:
        self._hits(self._library.search(Query("common footer", 1000, "hybrid", allowed)), self._own(allowed) + 1)

    def _inside(self, allowed: FilterCondition) -> None:
        seen = self._library.recognise(PROMPT, allowed=allowed)
        assert all(PROMPT[each.start : each.end] == each.passage.text for each in seen)
        self._saw([each.passage for each in seen], self._own(allowed) + 1)

    def _listed(self, allowed: FilterCondition) -> None:
        many = DOCUMENTS // 2 if allowed is RED else DOCUMENTS
        with self._library.catalog.view() as view:
            entries = view.documents(allowed)
            self._saw(entries, many)
            newest = condition({"generation": self.generation})
            assert view.count(allowed) == view.count(allowed & newest) == many
            assert view.count(condition({"generation": {"$ne": self.generation}})) == 0
            for entry in entries:
                self._saw(view.passages(entry.id), PARTS + 1)


def small_lists() -> None:
    """A few vectors are many, and all lists are searched."""
    nearest.FLAT = 12
    nearest.FEWEST_PROBED = 1 << 20


def main(folder: str, seed: str, last: str) -> None:
    small_lists()
    with closing(SqliteCatalog(Path(folder) / "catalog.sqlite")) as catalog:
        reader = Reader(Library(catalog, Path(folder) / "index", embedders=Embedders(WordEmbedder())), int(seed))
        reader.look()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while reader.generation < int(last):
            reader.look()
        sys.stdout.write(f"{reader.looks}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
