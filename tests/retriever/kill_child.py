"""Puts, replaces and deletes documents until it is killed, by a plan that follows from a seed alone.

Says `ready`, then the number of each step once its change has returned. The clock jumps, and now and then files may
not grow, as on a full disk: then a step is refused, and taken again.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from random import Random

from retriever import nearest
from retriever.catalog.sqlite import SqliteCatalog
from retriever.documents import Document, DocumentPart
from retriever.embedders.embedding import Embedders
from retriever.errors import CatalogError
from retriever.library import Library
from tests.jumping_clock import let_clock_jump
from tests.limited_files import limited_files
from tests.nursery import serve
from tests.retriever.fakes import WordEmbedder

NAMES = 24
WORDS = ["amber", "birch", "cedar", "delta", "ember", "frost", "grove", "heron", "inlet", "jetty", "knoll", "larch"]
COMMON = ["a footer that stands in many of the documents", "a header that stands in many of the documents", " \n"]


@dataclass(frozen=True, slots=True)
class Step:
    """One change, and whether the library is maintained behind it."""

    put: tuple[Document, ...]
    deleted: tuple[str, ...]
    maintained: bool


def planned(seed: int, number: int) -> Step:
    """What this step does."""
    chance = Random(f"{seed} {number}")
    maintained = chance.random() < 0.25
    names = [f"d{each}" for each in chance.sample(range(NAMES), chance.randint(1, 4))]
    if chance.random() < 0.25:
        return Step((), tuple(names), maintained)
    return Step(tuple(_document(name, chance) for name in names), (), maintained)


def _document(name: str, chance: Random) -> Document:
    texts = [" ".join(chance.choices(WORDS, k=chance.randint(3, 40))) for _ in range(chance.randint(1, 6))]
    parts = [DocumentPart(text, metadata={"own": True} if chance.random() < 0.2 else {}) for text in texts]
    parts.insert(chance.randint(0, len(parts)), DocumentPart(chance.choice(COMMON)))
    return Document(name, tuple(parts), chance.choice(["", "a title"]), {"team": chance.choice(["red", "blue"])})


def small_lists() -> None:
    """A few vectors are many, and all lists are searched."""
    nearest.FLAT = 40
    nearest.FEWEST_PROBED = 1 << 20


def say(line: object) -> None:
    """One whole line, at once: what was said before a kill is heard."""
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


def take(library: Library, step: Step) -> None:
    """The change alone."""
    if step.put:
        library.put(step.put, collection="c")
    if step.deleted:
        with library.catalog.change() as change:
            change.delete(step.deleted)


def is_taken(library: Library, step: Step, *, chance: Random) -> bool:
    """Takes a step, unless the disk is full."""
    try:
        with limited_files(chance):
            take(library, step)
            if step.maintained:
                library.maintain()
    except CatalogError:
        return False
    return True


def main(folder: str, seed: str, step: str) -> None:
    """Never returns: ends by a kill, or when nobody listens any more."""
    small_lists()
    let_clock_jump()
    say("ready")
    catalog = SqliteCatalog(Path(folder) / "catalog.sqlite")
    library = Library(catalog, Path(folder) / "index", embedders=Embedders(WordEmbedder()))
    number, chance = int(step), Random()
    while True:
        plan = planned(int(seed), number)
        while not is_taken(library, plan, chance=chance):
            pass
        say(number)
        number += 1


if __name__ == "__main__":
    serve(main)
