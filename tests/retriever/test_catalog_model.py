"""A catalog under random changes against dictionaries that say what it holds, and its tables read behind its back."""

import sqlite3
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from retriever.catalog import query_terms
from retriever.catalog.change import CatalogChange
from retriever.catalog.sqlite import SqliteCatalog
from retriever.documents import Document, DocumentPart, chunk_id
from retriever.filter_condition import EVERYTHING, condition, in_collection
from retriever.types import CatalogState, Collection, Removal

WORDS = ("apple", "pear", "plum", "fig", "東")  # none has a part in another
TEXTS = ("apple pear", "pear plum", "plum plum apple", "fig", "東京都", "a text without them", "", "apple " * 9)
NAMES, COLLECTIONS, EMBEDDERS = ("a", "b", "c", "ä"), ("one", "two"), ("e", "f")

metadata = st.dictionaries(
    st.sampled_from("mn"), st.sampled_from([1, 2.5, "1", True, None, [1, "x"], {"deep": 1}]), max_size=2
)
parts = st.builds(
    DocumentPart,
    st.sampled_from(TEXTS),
    name=st.sampled_from(["", "n"]),
    start=st.sampled_from([None, 0]),
    metadata=st.just({}) | metadata,
)
documents = st.builds(
    Document,
    st.sampled_from(NAMES),
    st.lists(parts, max_size=4).map(tuple),
    title=st.sampled_from(["", "", "fig"]),
    metadata=metadata,
)
collections = st.sampled_from(COLLECTIONS)


@dataclass(frozen=True, slots=True)
class Version:
    document: Document
    collection: str
    patched: bool = False

    @property
    def chunks(self) -> list[str]:
        return [part.id for part in self.document.parts]


@dataclass
class Model:
    """What a catalog is to hold."""

    serving: dict[str, Version] = field(default_factory=dict)
    staged: dict[int, Version] = field(default_factory=dict)
    embedders: dict[str, bool] = field(default_factory=dict)
    vectors: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def copy(self) -> "Model":
        return Model(dict(self.serving), dict(self.staged), dict(self.embedders), dict(self.vectors))

    @property
    def versions(self) -> list[Version]:
        return [*self.serving.values(), *self.staged.values()]

    def uses(self) -> Counter[str]:
        return Counter(chunk for version in self.versions for chunk in version.chunks)

    def removal(self, removed: list[Version]) -> tuple[set[str], set[str]]:
        """What leaves with these versions, which are out already: gone, and kept by others."""
        uses = self.uses()
        left = {chunk for version in removed for chunk in version.chunks}
        gone = {chunk for chunk in left if not uses[chunk]}
        self.vectors = {key: vector for key, vector in self.vectors.items() if key[1] not in gone}
        return gone, left - gone

    def put(self, documents: list[Document], collection: str) -> tuple[set[str], set[str]]:
        new = [Version(document, collection) for document in documents]
        removed: list[Version] = []
        for version in [each for each in new if self.serving.get(each.document.id) != each]:
            if older := self.serving.get(version.document.id):
                removed.append(older)
            self.serving[version.document.id] = version
        return self.removal(removed)

    def serve(self, number: int) -> tuple[set[str], set[str]]:
        version = self.staged.pop(number)
        older = self.serving.get(version.document.id)
        self.serving[version.document.id] = version
        return self.removal([older] if older else [])

    def delete(self, fits: set[tuple[str, str]]) -> tuple[set[str], set[str]]:
        """Versions by name and collection."""
        removed = [each for each in self.versions if (each.document.id, each.collection) in fits]
        self.serving = {name: each for name, each in self.serving.items() if each not in removed}
        self.staged = {number: each for number, each in self.staged.items() if each not in removed}
        return self.removal(removed)


def told(removal: Removal) -> tuple[set[str], set[str]]:
    gone, kept = set(removal.gone), set(removal.kept)
    assert len(gone) == len(removal.gone) and len(kept) == len(removal.kept)
    return gone, kept


class Changes(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.path = Path(self.folder.name) / "catalog.sqlite"
        self.catalog = SqliteCatalog(self.path)
        self.model = Model()
        self.numbers: dict[str, int] = {}
        self.state = CatalogState("", 0, 0, 0, 0)

    def teardown(self) -> None:
        self.catalog.close()
        self.folder.cleanup()

    @rule(documents=st.lists(documents, min_size=1, max_size=3), collection=collections)
    def put(self, documents: list[Document], collection: str) -> None:
        with self.catalog.change() as change:
            removal = change.put(documents, collection=collection)
        assert told(removal) == self.model.put(documents, collection)

    @rule(collection=collections, data=st.data())
    @precondition(lambda self: self.model.serving)
    def put_again(self, collection: str, data: st.DataObject) -> None:
        """What serves already, just so or in another collection."""
        self.put([data.draw(st.sampled_from(list(self.model.serving.values()))).document], collection)

    @rule(document=documents, collection=collections)
    def stage(self, document: Document, collection: str) -> None:
        with self.catalog.change() as change:
            number = change.stage(document, collection=collection)
        assert number not in self.model.staged
        self.model.staged[number] = Version(document, collection)

    @rule(data=st.data(), times=st.integers(1, 2))
    @precondition(lambda self: self.model.staged)
    def serve(self, data: st.DataObject, times: int) -> None:
        number = data.draw(st.sampled_from(list(self.model.staged)))
        with self.catalog.change() as change:
            removal = change.serve(number)
            assert times == 1 or change.serve(number) == Removal()
        assert told(removal) == self.model.serve(number)

    @rule(data=st.data())
    @precondition(lambda self: self.model.staged)
    def drop(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(list(self.model.staged)))
        with self.catalog.change() as change:
            removal = change.drop(number)
        assert told(removal) == self.model.removal([self.model.staged.pop(number)])

    @rule(name=st.sampled_from(NAMES), over=metadata)
    def patch(self, name: str, over: dict[str, object]) -> None:
        with self.catalog.change() as change:
            found = change.patch(name, metadata=over)
        version = self.model.serving.get(name)
        assert (found is None) == (version is None)
        if version:
            merged = {**version.document.metadata, **over}
            kept = {name: value for name, value in merged.items() if name not in over or over[name] is not None}
            self.model.serving[name] = Version(replace(version.document, metadata=kept), version.collection, True)

    @rule(names=st.lists(st.sampled_from(NAMES), max_size=3))
    def delete(self, names: list[str]) -> None:
        with self.catalog.change() as change:
            removal = change.delete(names)
        assert told(removal) == self.model.delete({(name, each) for name in names for each in COLLECTIONS})

    @rule(name=collections)
    def delete_collection(self, name: str) -> None:
        with self.catalog.change() as change:
            change.put_collection(Collection(name, {"size": 1}))
            removal = change.delete_collection(name)
        assert told(removal) == self.model.delete({(each, name) for each in NAMES})

    @rule(name=st.sampled_from(EMBEDDERS))
    def add_embedder(self, name: str) -> None:
        with self.catalog.change() as change:
            change.add_embedder(name, dim=2)
        self.model.embedders.setdefault(name, not self.model.embedders and not self.model.uses())

    @rule(data=st.data())
    @precondition(lambda self: self.model.embedders)
    def serve_embedder(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(list(self.model.embedders)))
        with self.catalog.change() as change:
            change.serve_embedder(name)
        self.model.embedders = {name: True}
        self.model.vectors = {key: vector for key, vector in self.model.vectors.items() if key[0] == name}

    @rule(name=st.sampled_from(EMBEDDERS), texts=st.lists(st.sampled_from(TEXTS), unique=True), value=st.integers(1, 9))
    def put_vectors(self, name: str, texts: list[str], value: int) -> None:
        told = [chunk_id(text) for text in texts]
        vectors = np.array([[value, place] for place in range(len(told))], np.float32).reshape(-1, 2)
        with self.catalog.change() as change:
            change.put_vectors(told, vectors, embedder=name)
        uses = self.model.uses()
        for chunk, vector in zip(told, vectors.tolist(), strict=True):
            if name in self.model.embedders and uses[chunk]:
                self.model.vectors.setdefault((name, chunk), vector)

    @rule(documents=st.lists(documents, max_size=3), collection=collections, name=st.sampled_from(NAMES))
    def fail(self, documents: list[Document], collection: str, name: str) -> None:
        def failing(change: CatalogChange) -> None:
            change.put(documents, collection=collection)
            change.patch(name, metadata={"m": "new"})
            change.delete([name])
            raise ZeroDivisionError

        with suppress(ZeroDivisionError), self.catalog.change() as change:
            failing(change)

    @rule()
    def open_again(self) -> None:
        self.catalog.close()
        self.catalog = SqliteCatalog(self.path)

    @invariant()
    def documents_and_passages_are_those_of_the_model(self) -> None:
        with self.catalog.view() as view:
            entries = {each.id: each for each in view.documents(EVERYTHING)}
            assert list(entries) == sorted(self.model.serving) and view.count(EVERYTHING) == len(entries)
            for name, version in self.model.serving.items():
                document, found = version.document, entries[name]
                assert (found.collection, found.title, found.metadata, found.parts) == (
                    *(version.collection, document.title, document.metadata, len(document.parts)),
                )
                assert [(p.text, p.name, p.start, p.metadata, p.place) for p in view.passages(name)] == [
                    (part.text, part.name, part.start, {**document.metadata, **part.metadata}, place)
                    for place, part in enumerate(document.parts)
                ]

    @invariant()
    def filters_and_words_find_what_serves(self) -> None:
        with self.catalog.view() as view:
            rows = view.rows_of([chunk_id(text) for text in TEXTS])
            assert rows.keys() == self.model.uses().keys()
            numbered = {row: chunk for chunk, row in rows.items()}
            for where, fits in (
                (EVERYTHING, lambda _, __: True),
                (in_collection("one"), lambda version, _: version.collection == "one"),
                (
                    condition({"m": 1}),
                    lambda _, metadata: metadata.get("m") in (1, [1, "x"]) and metadata["m"] is not True,
                ),
            ):
                serving = [
                    (version, part)
                    for version in self.model.serving.values()
                    for part in version.document.parts
                    if fits(version, {**version.document.metadata, **part.metadata})
                ]
                held = {(version.document.id, part.id) for version, part in serving}
                assert {numbered[int(row)] for row in view.chunks_of(where)} == {part.id for _, part in serving}
                holding = view.holding(list(numbered), where)
                assert {(p.document, p.id) for p in holding} <= held
                assert sorted(p.id for p in holding) == sorted({part.id for _, part in serving})
                for word in WORDS:
                    wanted = {part.id for each, part in serving if word in f"{each.document.title} {part.text}"}
                    found = view.lexical(word, where, limit=100)
                    assert Counter(each.passage.id for each in found) == Counter(wanted)

    @invariant()
    def vectors_are_those_of_the_model(self) -> None:
        with self.catalog.view() as view:
            assert {each.name: each.serving for each in view.embedders()} == self.model.embedders
            chunks = [chunk_id(text) for text in TEXTS]
            for name in EMBEDDERS:
                kept = {chunk: vector for (each, chunk), vector in self.model.vectors.items() if each == name}
                assert {chunk: row.tolist() for chunk, row in view.vectors(chunks, embedder=name).items()} == kept
                assert len(view.embedded_after(0, embedder=name, limit=100).rows) == len(kept)
                lacking = [chunk for _, chunk, _ in view.without_vector(0, embedder=name, limit=100)]
                assert set(lacking) == self.model.uses().keys() - kept.keys()

    @invariant()
    def numbers_only_rise_and_what_went_is_told(self) -> None:
        with self.catalog.view() as view:
            state, before = view.state(), self.state
            assert state.changes >= before.changes and state.vectors >= before.vectors
            rows = view.rows_of([chunk_id(text) for text in TEXTS])
            for chunk, row in rows.items():
                assert row == self.numbers.get(chunk) or before.chunks < row <= state.chunks
            assert _gone(self.numbers, rows) <= set(view.removed_after(before.removed).tolist())
            assert not set(view.removed_after(0).tolist()) & set(rows.values())
        self.numbers, self.state = rows, state

    @invariant()
    def nothing_is_left_in_the_tables_of_what_went(self) -> None:
        versions, uses = self.model.versions, self.model.uses()
        with closing(sqlite3.connect(self.path)) as connection:
            counted = {
                "documents": len(versions),
                "passages": sum(len(each.chunks) for each in versions),
                "labels": len(versions) + sum(bool(p.metadata) for each in versions for p in each.document.parts),
                "vectors": len(self.model.vectors),
                "collections": 0,
            }
            for table, count in counted.items():
                assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (count,)
            assert dict(connection.execute("SELECT id, uses FROM chunks")) == uses
            lost = "SELECT 1 FROM facets WHERE label NOT IN (SELECT row FROM labels)"
            assert connection.execute(lost).fetchall() == []
            self._check_words(connection)

    def _check_words(self, connection: sqlite3.Connection) -> None:
        """The index holds the terms of the passages that serve, each at its place, and nothing else."""
        connection.execute("INSERT INTO terms (terms) VALUES ('integrity-check')")
        connection.execute("CREATE VIRTUAL TABLE temp.instances USING fts5vocab (main, terms, instance)")
        found = set(connection.execute("SELECT doc, offset, term FROM instances"))
        passages = connection.execute(
            "SELECT p.row, d.title, c.text FROM passages p JOIN documents d ON d.row = p.document "
            "JOIN chunks c ON c.row = p.chunk WHERE d.serving = 1"
        ).fetchall()
        terms = [(row, query_terms.terms(f"{title}\n{text}")) for row, title, text in passages]
        assert found == {(row, place, term) for row, told in terms for place, term in enumerate(told)}
        facts = dict(connection.execute("SELECT name, value FROM facts"))
        assert (facts["passages"], facts["words"]) == (len(terms), sum(len(told) for _, told in terms))


def _gone(before: dict[str, int], after: dict[str, int]) -> set[int]:
    return set(before.values()) - set(after.values())


@pytest.mark.long
def test_a_catalog_holds_what_its_changes_say() -> None:
    """Each time `test_uploads_model.py` makes the same changes, among others."""
    length = settings(max_examples=200, stateful_step_count=50, deadline=None)
    run_state_machine_as_test(Changes, settings=length)
