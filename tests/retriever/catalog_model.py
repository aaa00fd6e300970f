"""A catalog under random changes against dictionaries that say what it holds, and its tables read behind its back.

`test_catalog_model.py` runs it, with uploads among the changes, in each database.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from retriever.catalog import query_terms
from retriever.catalog.change import CatalogChange
from retriever.catalog.view import CatalogView
from retriever.documents import Document, DocumentPart, chunk_id
from retriever.errors import SearchError
from retriever.filter_condition import EVERYTHING, condition, in_collection
from retriever.marks import MIN_BYTES, stripped
from retriever.types import CatalogState, Collection, Removal
from tests.retriever.catalogs import CatalogTables, entry

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
    page=st.sampled_from([None, 0]),
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
rules = st.sampled_from([{}, {"size": 1, "nested": {"ä": [None]}}])
# What a put may change of what serves: each of it alone makes another version.
EDITS: tuple[Callable[[Document], Document], ...] = (
    lambda it: replace(it, title=f"{it.title} fig"),
    lambda it: replace(it, metadata={**it.metadata, "k": 1}),
    lambda it: replace(it, parts=(*it.parts, DocumentPart("fig"))),
    lambda it: replace(it, parts=it.parts[1:]),
    *(
        lambda it, other=other: replace(it, parts=tuple(replace(part, **other) for part in it.parts))
        for other in ({"name": "other"}, {"start": 7}, {"page": 7}, {"metadata": {"own": 1}})
    ),
)


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
    rules: dict[str, dict[str, object]] = field(default_factory=dict)
    prefixes: dict[str, tuple[int, ...]] = field(default_factory=dict)

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
    """Invariants are looked at after so many changes, and at the end: a database may take long to be asked."""

    def __init__(self, tables: CatalogTables, *, apart: int) -> None:
        super().__init__()
        self.tables, self.apart, self.steps = tables, apart, 0
        self.catalog = tables.open()
        self.model = Model()
        self.numbers: dict[str, int] = {}
        self.state = CatalogState("", 0, 0, 0, 0)

    def teardown(self) -> None:
        self.agrees()
        self.catalog.close()
        self.tables.forget()

    @rule(documents=st.lists(documents, min_size=1, max_size=3), collection=collections)
    def put(self, documents: list[Document], collection: str) -> None:
        with self.catalog.change() as change:
            removal = change.put(documents, collection=collection)
        assert told(removal) == self.model.put(documents, collection)

    @rule(data=st.data())
    @precondition(lambda self: self.model.serving)
    def put_again(self, data: st.DataObject) -> None:
        """What serves already, just so: it is left alone, but for one that was patched."""
        patched = [each for each in self.model.serving.values() if each.patched]
        version = data.draw(st.sampled_from([*self.model.serving.values(), *patched]))
        before = entry(self.catalog, version.document.id)
        self.put([version.document], version.collection)
        assert version.patched or entry(self.catalog, version.document.id) == before

    @rule(collection=collections, data=st.data(), edit=st.sampled_from(EDITS))
    @precondition(lambda self: self.model.serving)
    def edit(self, collection: str, data: st.DataObject, edit: Callable[[Document], Document]) -> None:
        """What serves already, in another collection or with one thing changed."""
        self.put([edit(data.draw(st.sampled_from(list(self.model.serving.values()))).document)], collection)

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

    @rule(data=st.data(), over=metadata | st.just({"m": None}))
    def patch(self, data: st.DataObject, over: dict[str, object]) -> None:
        name = data.draw(st.sampled_from([*self.model.serving, *self.model.serving, "a"]))
        with self.catalog.change() as change:
            found = change.patch(name, metadata=over)
        version = self.model.serving.get(name)
        assert found == entry(self.catalog, name) and (found is None) == (version is None)
        if version:
            merged = {**version.document.metadata, **over}
            kept = {name: value for name, value in merged.items() if name not in over or over[name] is not None}
            self.model.serving[name] = Version(replace(version.document, metadata=kept), version.collection, True)

    @rule(names=st.lists(st.sampled_from(NAMES), max_size=3))
    def delete(self, names: list[str]) -> None:
        with self.catalog.change() as change:
            removal = change.delete(names)
        assert told(removal) == self.model.delete({(name, each) for name in names for each in COLLECTIONS})

    @rule(name=collections, rules=rules, only_new=st.booleans())
    def put_collection(self, name: str, rules: dict[str, object], *, only_new: bool) -> None:
        is_put = not (only_new and name in self.model.rules)
        with self.catalog.change() as change:
            assert change.put_collection(Collection(name, rules), only_new=only_new) == is_put
        self.model.rules |= {name: rules} if is_put else {}

    @rule(name=collections, ids=st.lists(st.sampled_from([0, 5, 2**32 - 1])))
    def keep_prefix(self, name: str, ids: list[int]) -> None:
        """The first that was kept stays."""
        with self.catalog.change() as change:
            assert change.keep_prefix(name, model="m", ids=ids) == self.model.prefixes.setdefault(name, tuple(ids))

    @rule(name=collections)
    def delete_collection(self, name: str) -> None:
        with self.catalog.change() as change:
            removal = change.delete_collection(name)
        assert told(removal) == self.model.delete({(each, name) for each in (*NAMES, "")})
        self.model.rules.pop(name, None)
        self.model.prefixes.pop(name, None)

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

    @rule(data=st.data(), name=st.sampled_from(EMBEDDERS), value=st.integers(1, 9))
    def put_vectors(self, data: st.DataObject, name: str, value: int) -> None:
        """Of chunks that are there, mostly, and may have vectors already."""
        uses = self.model.uses()
        told = data.draw(st.lists(st.sampled_from([*uses, chunk_id(TEXTS[0])]), unique=True, min_size=1))
        vectors = np.array([[value, place] for place in range(len(told))], np.float32)
        with self.catalog.change() as change:
            change.put_vectors(told, vectors, embedder=name)
        for chunk, vector in zip(told, vectors.tolist(), strict=True):
            if name in self.model.embedders and uses[chunk]:
                self.model.vectors.setdefault((name, chunk), vector)

    @rule(documents=st.lists(documents, max_size=3), collection=collections, name=st.sampled_from(NAMES))
    def fail(self, documents: list[Document], collection: str, name: str) -> None:
        """Nothing of a change that ends in an error has happened."""

        def failing(change: CatalogChange) -> None:
            change.put(documents, collection=collection)
            change.patch(name, metadata={"m": "new"})
            change.delete([name])
            change.delete_collection(COLLECTIONS[0])
            change.put_collection(Collection(collection, {"failed": True}))
            change.stage(Document("staged", (DocumentPart("fig"),)), collection=collection)
            change.add_embedder("failed", dim=1)
            change.put_vectors([chunk_id("fig")], np.ones((1, 1), np.float32), embedder="failed")
            change.serve_embedder("unknown")

        with pytest.raises(SearchError, match="add it first"), self.catalog.change() as change:
            failing(change)

    @rule()
    def open_again(self) -> None:
        self.catalog.close()
        self.catalog = self.tables.open()

    @invariant()
    def agrees_now_and_then(self) -> None:
        self.steps += 1
        if self.steps % self.apart == 0:
            self.agrees()

    def agrees(self) -> None:
        """Whether the catalog is what the model says."""
        with self.catalog.view() as view:
            self.documents_and_passages_are_those_of_the_model(view)
            self.filters_and_words_find_what_serves(view)
            self.vectors_are_those_of_the_model(view)
            self.numbers_only_rise_and_what_went_is_told(view)
        self.nothing_is_left_in_the_tables_of_what_went()

    def documents_and_passages_are_those_of_the_model(self, view: CatalogView) -> None:
        entries = {each.id: each for each in view.documents(EVERYTHING)}
        assert list(entries) == sorted(self.model.serving) and view.count(EVERYTHING) == len(entries)
        for name, version in self.model.serving.items():
            document, found = version.document, entries[name]
            assert (found.collection, found.title, found.metadata, found.parts) == (
                *(version.collection, document.title, document.metadata, len(document.parts)),
            )
            passages = view.passages(name)
            assert [(p.text, p.name, p.start, p.page, p.metadata, p.place) for p in passages] == [
                (part.text, part.name, part.start, part.page, {**document.metadata, **part.metadata}, place)
                for place, part in enumerate(document.parts)
            ]
            assert view.passages(name, first=1, limit=2) == passages[1:3]
        wanted = [Collection(name, self.model.rules[name]) for name in sorted(self.model.rules)]
        assert view.collections() == wanted == [view.collection(each.name) for each in wanted]
        prefixes = self.model.prefixes
        assert [view.prefix(name, model="m") for name in COLLECTIONS] == [prefixes.get(name) for name in COLLECTIONS]

    def filters_and_words_find_what_serves(self, view: CatalogView) -> None:
        rows = view.rows_of([chunk_id(text) for text in TEXTS])
        assert rows.keys() == self.model.uses().keys()
        numbered = {row: chunk for chunk, row in rows.items()}
        assert {chunk_id(text): row for row, text in view.texts([*numbered, 1 << 40]).items()} == rows
        marked = view.marked_after(0)
        sizes = {rows[chunk_id(text)]: len(stripped(text)) for text in TEXTS if chunk_id(text) in rows}
        assert dict(zip(marked.rows.tolist(), marked.nbytes.tolist(), strict=True)) == {
            row: nbytes for row, nbytes in sizes.items() if nbytes >= MIN_BYTES
        }
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
            chunks = {part.id for _, part in serving}
            assert {numbered[int(row)] for row in view.chunks_of(where)} == chunks
            asked = [*sorted(numbered, reverse=True), 1 << 40]
            holding = view.holding(asked, where)
            assert {(p.document, p.id) for p in holding} <= {(each.document.id, part.id) for each, part in serving}
            assert [p.chunk for p in holding] == [row for row in asked if numbered.get(row) in chunks]
            for word in WORDS:
                wanted = {part.id for each, part in serving if word in f"{each.document.title} {part.text}"}
                found = view.lexical(word, where, limit=100)
                assert Counter(each.passage.id for each in found) == Counter(wanted)

    def vectors_are_those_of_the_model(self, view: CatalogView) -> None:
        assert {each.name: each.serving for each in view.embedders()} == self.model.embedders
        assert all(each.dim == 2 for each in view.embedders())
        chunks = [chunk_id(text) for text in TEXTS]
        rows = view.rows_of(chunks)
        for name in EMBEDDERS:
            kept = {chunk: vector for (each, chunk), vector in self.model.vectors.items() if each == name}
            assert {chunk: row.tolist() for chunk, row in view.vectors(chunks, embedder=name).items()} == kept
            found, one = (view.embedded_after(0, embedder=name, limit=limit) for limit in (100, 1))
            assert dict(zip(found.chunks.tolist(), found.vectors.tolist(), strict=True)) == {
                rows[chunk]: vector for chunk, vector in kept.items()
            }
            numbers = found.rows.tolist()
            assert sorted(numbers) == numbers and one.rows.tolist() == numbers[:1]
            later = view.embedded_after((numbers or [0])[0], embedder=name, limit=100)
            assert later.rows.tolist() == numbers[1:]
            lacking = view.without_vector(0, embedder=name, limit=100)
            assert {chunk for _, chunk, _ in lacking} == self.model.uses().keys() - kept.keys()
            for row, *_ in view.without_vector(0, embedder=name, limit=1):
                assert view.without_vector(row, embedder=name, limit=100) == lacking[1:]

    def numbers_only_rise_and_what_went_is_told(self, view: CatalogView) -> None:
        state, before = view.state(), self.state
        assert state.changes >= before.changes and state.vectors >= before.vectors
        rows = view.rows_of([chunk_id(text) for text in TEXTS])
        for chunk, row in rows.items():
            assert row == self.numbers.get(chunk) or before.chunks < row <= state.chunks
        assert set(self.numbers.values()) - set(rows.values()) <= set(view.removed_after(before.removed).tolist())
        assert not set(view.removed_after(0).tolist()) & set(rows.values())
        self.numbers, self.state = rows, state

    def nothing_is_left_in_the_tables_of_what_went(self) -> None:
        versions, uses = self.model.versions, self.model.uses()
        counted = {
            "documents": len(versions),
            "passages": sum(len(each.chunks) for each in versions),
            "labels": len(versions) + sum(bool(p.metadata) for each in versions for p in each.document.parts),
            "vectors": len(self.model.vectors),
            "collections": len(self.model.rules),
            "prefixes": len(self.model.prefixes),
        }
        counts = " UNION ALL ".join(f"SELECT '{table}', count(*) FROM {table}" for table in counted)
        assert dict(self.tables.rows(counts)) == counted
        assert dict(self.tables.rows("SELECT id, uses FROM chunks")) == uses
        assert self.tables.rows("SELECT 1 FROM facets WHERE label NOT IN (SELECT row FROM labels)") == []
        passages = self.tables.rows(
            "SELECT p.row, d.title, CAST(c.text AS BLOB) FROM passages p JOIN documents d ON d.row = p.document "
            "JOIN chunks c ON c.row = p.chunk WHERE d.serving = 1"
        )
        terms = {row: query_terms.terms(f"{title}\n{text.decode()}") for row, title, text in passages}
        assert self.tables.holds_words(terms)
        facts = dict(self.tables.rows("SELECT name, value FROM facts WHERE name IN ('passages', 'words')"))
        assert facts == {"passages": len(terms), "words": sum(map(len, terms.values()))}
