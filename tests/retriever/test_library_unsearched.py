"""Collections that are kept without search: nothing of them is embedded or found, until it stands elsewhere too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from retriever.catalog.sqlite import SqliteCatalog
from retriever.documents import Document, DocumentPart, chunk_id
from retriever.embedders.embedding import Embedders
from retriever.filter_condition import scope
from retriever.library import Library
from retriever.search import Query
from retriever.types import Collection
from tests.retriever.fakes import WordEmbedder
from tests.retriever.libraries import MODES, Made, document

TEXTS = ("an amber heron", "a birch heron", "the cedar heron", "no delta heron", "one ember heron")
NAMES, COLLECTIONS = ("d0", "d1", "d2", "d3"), ("open", "foreign", "other")
ALL = 1000


@dataclass(frozen=True, slots=True)
class Step:
    """A document is put into a collection, goes where it has no texts, or comes to serve in a second step."""

    name: str
    texts: tuple[str, ...]
    collection: str
    way: str


@dataclass(frozen=True, slots=True)
class Switch:
    """A collection's search."""

    collection: str
    search: bool


steps = st.lists(
    st.builds(
        Step,
        st.sampled_from(NAMES),
        st.lists(st.sampled_from(TEXTS), max_size=3, unique=True).map(tuple),
        st.sampled_from(COLLECTIONS),
        st.sampled_from(["put", "stage"]),
    )
    | st.builds(Switch, st.sampled_from(COLLECTIONS), st.booleans()),
    min_size=1,
    max_size=8,
)


class World:
    """A library, and what should be found in it. `may`: texts that an embedder may have been asked for."""

    def __init__(self, folder: Path) -> None:
        self.catalog = SqliteCatalog(folder / "catalog.sqlite")
        self.embedder = WordEmbedder()
        self.library = Library(self.catalog, folder, embedders=Embedders(self.embedder))
        self.searched = dict.fromkeys(COLLECTIONS, True)
        self.serving: dict[str, Step] = {}
        self.may: set[str] = set()

    def do(self, step: Step | Switch) -> None:
        if isinstance(step, Switch):
            self.searched[step.collection] = step.search
            with self.catalog.change() as change:
                change.put_collection(Collection(step.collection, {"search": step.search}))
        elif not step.texts:
            self.serving.pop(step.name, None)
            with self.catalog.change() as change:
                change.delete([step.name])
        else:
            self._put(step)
            self.serving[step.name] = step
        self.may |= self.shown()

    def _put(self, step: Step) -> None:
        made, collection = Document(step.name, tuple(map(DocumentPart, step.texts))), step.collection
        if step.way == "put":
            self.library.put([made], collection=collection)
            return
        versions = self.library.stage_all([made], collection=collection)
        with self.catalog.change() as change:
            for version in versions:
                change.serve(version)

    def shown(self) -> set[str]:
        """Texts that stand in a collection with search."""
        return {text for each in self.serving.values() if self.searched[each.collection] for text in each.texts}

    def found(self, mode: str) -> set[str]:
        with self.catalog.view() as view:
            hidden = view.unsearched()
        assert hidden == tuple(sorted(name for name, is_searched in self.searched.items() if not is_searched))
        hits = self.library.search(Query("heron", ALL, mode, scope(without=hidden)))  # type: ignore[arg-type]
        assert {hit.passage.collection for hit in hits}.isdisjoint(hidden)
        return {hit.passage.text for hit in hits}


@settings(max_examples=25, deadline=None, derandomize=True)
@given(steps)
def test_what_is_embedded_and_found_is_what_stands_where_search_is_on(taken: Sequence[Step | Switch]) -> None:
    with TemporaryDirectory() as folder:
        world = World(Path(folder))
        for step in taken:
            world.do(step)
            assert world.found("lexical") == world.shown()
            assert world.found("vector") <= world.shown()
            assert set(world.embedder.seen) <= world.may
        while world.library.advance(1):
            pass
        assert [world.found(mode) for mode in MODES] == [world.shown()] * 3
        assert set(world.embedder.seen) <= world.may
        world.catalog.close()


def test_a_new_embedder_leaves_them_out_and_serves_without_them(make: Made) -> None:
    library = make(WordEmbedder("old"))
    with library.catalog.change() as change:
        change.put_collection(Collection("foreign", {"search": False}))
    library.put([document("a", "a heron", " "), document("b", "a pearl")], collection="open")
    library.put([document("c", "a heron", "a fish"), document("d", "a crab", " ")], collection="foreign")
    new = WordEmbedder("new")
    both = make(new, WordEmbedder("old"))
    assert [both.advance(1) for _ in range(4)] == [1, 1, 0, 0]
    assert new.seen == ["a heron", "a pearl"]
    with library.catalog.change() as change:
        change.put_collection(Collection("foreign", {}))
    assert [both.advance(5) for _ in range(2)] == [2, 0]
    with library.catalog.view() as view:
        ids = [chunk_id(text) for text in ("a heron", "a pearl", "a fish", "a crab")]
        assert view.vectors(ids, embedder="new").keys() == set(ids)


def test_only_false_switches_it_off(make: Made) -> None:
    catalog = make().catalog
    rules: dict[str, object] = {"a": {}, "b": {"search": None}, "c": {"search": 0}, "d": {"search": "false"}, "e": True}
    with catalog.change() as change:
        for name, each in rules.items():
            change.put_collection(Collection(name, each if isinstance(each, dict) else {"search": each}))
        change.put_collection(Collection("näme ' \" 東", {"search": False, "system": "x"}))
    with catalog.view() as view:
        assert view.unsearched() == ("näme ' \" 東",)
