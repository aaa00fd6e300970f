"""An ingest is killed at random instants. What it had acknowledged is there, and catalog and indexes agree."""

import logging
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random

import pytest

from retriever import nearest
from retriever.catalog.lexical import body
from retriever.catalog.sqlite import SqliteCatalog
from retriever.documents import Document
from retriever.embedders.embedding import Embedders
from retriever.filter_condition import EVERYTHING, condition
from retriever.library import Library
from retriever.search import Mode, Query
from tests.nursery import Nursery, nursing
from tests.retriever.fakes import WordEmbedder
from tests.retriever.kill_child import planned, take

log = logging.getLogger(__name__)

SEED = 5
ALL = 1000
HALF = 2**-11 + 1e-4  # lists hold halves of floats, and where there are few vectors there are no lists; rounded, too
FILTERS = [EVERYTHING, condition({"team": "red"}), condition({"own": True})]

State = dict[str, Document]


@pytest.fixture(autouse=True)
def small_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the child."""
    monkeypatch.setattr(nearest, "FLAT", 40)
    monkeypatch.setattr(nearest, "FEWEST_PROBED", 1 << 20)


@contextmanager
def opened(folder: Path) -> Iterator[Library]:
    catalog = SqliteCatalog(folder / "catalog.sqlite")
    try:
        yield Library(catalog, folder / "index", embedders=Embedders(WordEmbedder()))
    finally:
        catalog.close()


def after(state: State, number: int) -> State:
    """What is there when a step was taken."""
    step = planned(SEED, number)
    kept = {name: each for name, each in state.items() if name not in step.deleted}
    return kept | {each.id: each for each in step.put}


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with nursing("tests.retriever.kill_child") as nursery:
        yield nursery


def acknowledged(nursery: Nursery, folder: Path, *, chance: Random, step: int) -> int:
    """Run the child from a step on and kill it; how many steps it said it had taken."""
    lines = chance.choice([0, 1, chance.randrange(40)])
    said = [*map(int, nursery.killed(str(folder), str(SEED), str(step), chance=chance, lines=lines))]
    assert said == list(range(step, step + len(said)))
    return len(said)


def held(library: Library) -> dict[str, list[tuple[object, ...]]]:
    """Every document, as far as a reader sees it."""
    with library.catalog.view() as view:
        return {
            entry.id: [
                (each.text, each.title, each.place, tuple(sorted(each.metadata.items())))
                for each in view.passages(entry.id)
            ]
            for entry in view.documents(EVERYTHING, limit=ALL)
        }


def meant(state: State) -> dict[str, list[tuple[object, ...]]]:
    """The same of what should be there."""
    return {
        name: [
            (part.text, each.title, place, tuple(sorted({**each.metadata, **part.metadata}.items())))
            for place, part in enumerate(each.parts)
        ]
        for name, each in state.items()
    }


def found(library: Library, mode: Mode) -> list[dict[str, float]]:
    """What searches find, and how well it fits."""
    asked = ["heron", "amber birch", "a footer that stands", "title", "knoll larch frost grove delta"]
    queries = [Query(text, ALL, mode, allowed) for text in asked for allowed in FILTERS]
    return [{hit.passage.id: round(hit.score, 4) for hit in library.search(query)} for query in queries]


def check_tables(file: Path) -> None:
    """Every table agrees with every other one."""
    with closing(sqlite3.connect(file)) as connection:
        ask = connection.execute
        assert ask("PRAGMA integrity_check").fetchall() == [("ok",)]
        ask("INSERT INTO terms (terms) VALUES ('integrity-check')")
        shown = ask(
            "SELECT p.row, d.title, c.text FROM passages p JOIN chunks c ON c.row = p.chunk "
            "JOIN documents d ON d.row = p.document WHERE d.serving = 1"
        ).fetchall()
        assert ask("SELECT count(*) FROM passages").fetchone() == (len(shown),)
        wanted = {row: Counter(body(title, text)) for row, title, text in shown}
        assert {row for (row,) in ask("SELECT rowid FROM terms")} == set(wanted)
        ask("CREATE VIRTUAL TABLE temp.told USING fts5vocab (main, terms, instance)")
        told: dict[int, Counter[str]] = {row: Counter() for row in wanted}
        for term, row in ask("SELECT term, doc FROM temp.told"):
            told[row][term] += 1
        assert told == wanted
        facts = dict(ask("SELECT name, value FROM facts").fetchall())
        assert (facts["passages"], facts["words"]) == (len(wanted), sum(each.total() for each in wanted.values()))
        uses = Counter(chunk for (chunk,) in ask("SELECT chunk FROM passages"))
        assert dict(ask("SELECT row, uses FROM chunks").fetchall()) == uses
        worded = {row for row, text in ask("SELECT row, text FROM chunks") if text.strip()}
        assert sorted(row for (row,) in ask("SELECT chunk FROM vectors")) == sorted(worded)
        labels = {row for (row,) in ask("SELECT label FROM passages UNION SELECT label FROM documents")}
        assert {row for (row,) in ask("SELECT row FROM labels")} == labels
        assert {row for (row,) in ask("SELECT label FROM facets")} == labels
        assert not {row for (row,) in ask("SELECT chunk FROM removed")} & uses.keys()


def harm(folder: Path, chance: Random) -> None:
    """Sometimes an index file is lost, cut short or damaged."""
    files = sorted(file for file in folder.glob("*") if file.suffix != ".lock")
    if not files or chance.random() < 0.5:
        return
    file = chance.choice(files)
    data = bytearray(file.read_bytes())
    match chance.randrange(3):
        case 0:
            file.unlink()
        case 1:
            file.write_bytes(data[: len(data) // 2])
        case _ if data:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            file.write_bytes(data)


def kill_often(nursery: Nursery, folder: Path, *, times: int) -> None:
    """One library, many ingests, all of them killed."""
    chance = Random(SEED)
    state: State = {}
    taken = 0
    for number in range(times):
        for _ in range(acknowledged(nursery, folder / "it", chance=chance, step=taken)):
            state, taken = after(state, taken), taken + 1
        harm(folder / "it" / "index", chance)
        with opened(folder / "it") as library:
            there = held(library)
            if there != meant(state):
                state, taken = after(state, taken), taken + 1  # it was done, but not yet said
            assert there == meant(state)
            check_tables(folder / "it" / "catalog.sqlite")
            with opened(folder / f"fresh {number}") as fresh:
                fresh.put(list(state.values()), collection="c")
                assert found(library, "lexical") == found(fresh, "lexical")
                assert found(library, "vector") == [pytest.approx(each, abs=HALF) for each in found(fresh, "vector")]
    assert taken > times, "the ingests were killed before they did anything"
    log.warning("%d kills, %d changes acknowledged", times, taken)
    with opened(folder / "it") as library:
        take(library, planned(SEED, taken))
        library.maintain()
    assert sorted(file.suffix for file in (folder / "it" / "index").iterdir()) == [".faiss", ".json", ".lock"]


@pytest.mark.parametrize("times", [12, pytest.param(400, marks=pytest.mark.long)])
def test_killed_ingests_lose_nothing_that_they_acknowledged(times: int, nursery: Nursery, tmp_path: Path) -> None:
    kill_often(nursery, tmp_path, times=times)
