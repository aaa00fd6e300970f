"""A vector store that kvweave follows: after any sequence of changes both hold the same nodes."""

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.ingestion import DocstoreStrategy, IngestionPipeline
from llama_index.core.schema import BaseNode, Document, TextNode, TransformComponent
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores import (
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    SimpleVectorStore,
    VectorStoreQuery,
)

from clients.conftest import Running
from clients.tests.line import Line
from kvweave_client import Client, ConnectionFailed
from llama_index.retrievers.kvweave import BesideKVWeave, KVWeaveSink

Sinks = Callable[..., KVWeaveSink]
SENTENCES = ["Halio lives in K7.", "Selark is led by Rosen.", "Norworks makes lamps.", "Dalware makes ropes."]
NAMES = ["p", "q", "r"]
EMBED = MockEmbedding(embed_dim=2)

several = st.lists(st.sampled_from(SENTENCES), min_size=1, max_size=3, unique=True).map(" ".join)
documents = st.dictionaries(st.sampled_from(NAMES), several, max_size=3)
steps = st.one_of(
    st.tuples(st.sampled_from(["upserts", "upserts_and_delete"]), documents),
    st.tuples(st.sampled_from(["refresh", "insert"]), documents),
    st.tuples(st.sampled_from(["delete_ref_doc", "delete_nodes", "delete_by_filter"]), documents),
    st.tuples(st.just("clear"), st.just({})),
)


class Sentences(TransformComponent):
    """Cuts a document into sentences, whose ids tell of which text they are."""

    def __call__(self, nodes: Sequence[BaseNode], **kwargs: object) -> list[BaseNode]:
        return [
            TextNode(
                id_=f"{each.node_id}/{len(each.get_content())}/{at}",
                text=f"{sentence}.",
                metadata={"at": at},
                relationships={"1": each.as_related_node_info()},
                embedding=[1.0, at],
            )
            for each in nodes
            for at, sentence in enumerate(each.get_content().removesuffix(".").split(". "))
        ]


class Both:
    """An index over a vector store beside kvweave, and a pipeline into the same store."""

    def __init__(self, sink: KVWeaveSink, *, is_async: bool) -> None:
        self.sink, self.is_async = sink, is_async
        self.inner = SimpleVectorStore()
        self.store = sink.beside(self.inner)
        storage = StorageContext.from_defaults(vector_store=self.store)
        cut: list[TransformComponent] = [Sentences()]
        self.index = VectorStoreIndex([], storage_context=storage, embed_model=EMBED, transformations=cut)
        self.docstore = SimpleDocumentStore()

    @property
    def ids(self) -> set[str]:
        return set(self.inner.data.embedding_dict)

    def step(self, what: str, texts: dict[str, str]) -> None:
        docs = [Document(id_=name, text=text) for name, text in texts.items()]
        some = sorted(self.ids)[:2]
        match what:
            case "upserts" | "upserts_and_delete":
                pipeline = IngestionPipeline(
                    transformations=[Sentences()],
                    docstore=self.docstore,
                    docstore_strategy=DocstoreStrategy(what),
                    vector_store=self.store,
                )
                self.call(lambda: pipeline.run(documents=docs), lambda: pipeline.arun(documents=docs))
            case "refresh":
                self.call(lambda: self.index.refresh_ref_docs(docs), lambda: self.index.arefresh_ref_docs(docs))
            case "insert":
                nodes = Sentences()(docs)
                self.call(lambda: self.index.insert_nodes(nodes), lambda: self.index.ainsert_nodes(nodes))
            case "delete_ref_doc":
                for each in docs:
                    self.call(
                        lambda each=each: self.index.delete_ref_doc(each.doc_id, delete_from_docstore=True),
                        lambda each=each: self.index.adelete_ref_doc(each.doc_id, delete_from_docstore=True),
                    )
            case "delete_nodes":
                self.call(lambda: self.store.delete_nodes(some), lambda: self.store.adelete_nodes(some))
            case "delete_by_filter":
                self.sink.flush(60)  # a filter sees what serves
                first = MetadataFilters(filters=[MetadataFilter(key="at", value=1, operator=FilterOperator.GTE)])
                self.call(
                    lambda: self.store.delete_nodes(filters=first), lambda: self.store.adelete_nodes(filters=first)
                )
            case _:
                self.call(self.store.clear, self.store.aclear)

    def call(self, run: Callable[[], object], arun: Callable[[], Coroutine[None, None, object]]) -> None:
        if self.is_async:
            asyncio.run(arun())
        else:
            run()


@pytest.fixture(scope="module")
def numbers(_numbers: Iterator[int]) -> Iterator[int]:
    return _numbers


@pytest.mark.parametrize("is_async", [False, True])
@settings(max_examples=12, deadline=None, derandomize=True)
@given(changes=st.lists(steps, min_size=2, max_size=6))
def test_both_hold_the_same_nodes_with_the_same_texts(
    client: Client,
    service: Running,
    numbers: Iterator[int],
    *,
    is_async: bool,
    changes: list[tuple[str, dict[str, str]]],
) -> None:
    name = f"beside-{next(numbers)}"
    sink = KVWeaveSink(collection=name, base_url=service.base_url, api_key=service.key, strict=True).using(client)
    both = Both(sink, is_async=is_async)
    for what, texts in changes:
        both.step(what, texts)
        assert sink.registered() == both.ids, what
    sink.flush(60)
    for document in client.documents(collection=name):
        [chunk] = client.chunks(document.id)
        assert document.id == f"{name}/{chunk.name}"
        length, at = document.id.split("/")[-2:]
        assert chunk.text.startswith(f"at: {at}\n\n") and document.metadata["at"] == int(at) and length.isdecimal()


def nodes(*names: str) -> list[BaseNode]:
    return [TextNode(id_=name, text=SENTENCES[0], embedding=[1.0, 0.0]) for name in names]


def test_the_inner_store_is_asked_and_persisted(sinks: Sinks, collection: str, tmp_path: Path) -> None:
    inner = SimpleVectorStore()
    store = sinks().beside(inner)
    assert store.add(nodes(collection)) == [collection]
    query = VectorStoreQuery(query_embedding=[1.0, 0.0], similarity_top_k=1)
    assert store.query(query) == inner.query(query) and asyncio.run(store.aquery(query)) == inner.query(query)
    assert (store.stores_text, store.client, store.inner is inner) == (False, None, True)
    with pytest.raises(NotImplementedError):
        store.get_nodes([collection])
    store.persist(str(tmp_path / "store.json"))
    assert SimpleVectorStore.from_persist_path(str(tmp_path / "store.json")).data == inner.data


class Failing(SimpleVectorStore):
    """A store whose deletions fail."""

    def delete(self, ref_doc_id: str, **delete_kwargs: object) -> None:
        raise OSError("the disk is full")

    def add(self, nodes: Sequence[BaseNode], **add_kwargs: object) -> list[str]:
        raise OSError("the disk is full")


def test_kvweave_holds_no_more_than_the_store_where_that_fails(sinks: Sinks, collection: str) -> None:
    sink = sinks()
    store = sink.beside(Failing())
    with pytest.raises(OSError, match="full"):
        store.add(nodes(collection))
    assert sink.registered() == set()
    sink.register(nodes(collection))
    with pytest.raises(OSError, match="full"):
        store.delete(collection)
    assert sink.registered() == set()


def test_a_service_that_is_away_leaves_the_store_as_it_is_if_strict_and_else_follows_later(
    sinks: Sinks, collection: str, line: Line
) -> None:
    for strict in (True, False):
        sink, inner = sinks(strict=strict), SimpleVectorStore()
        store = sink.beside(inner)
        store.add(nodes(collection))
        line.left = 0
        if strict:
            with pytest.raises(ConnectionFailed):
                store.delete(collection)
            with pytest.raises(ConnectionFailed):
                store.clear()
            assert inner.data.embedding_dict
        else:
            store.delete_nodes([collection])
            assert not inner.data.embedding_dict
        line.left = math.inf
        sink.settle()
        assert sink.registered() == set()


def test_to_delete_nothing_in_particular_is_refused(sinks: Sinks) -> None:
    with pytest.raises(ValueError, match=r"use clear\(\)"):
        sinks().beside(SimpleVectorStore()).delete_nodes()


def test_it_is_one_of_llama_indexs_vector_stores(sinks: Sinks) -> None:
    store = sinks().beside(SimpleVectorStore())
    assert isinstance(store, BesideKVWeave) and "kvw_" not in f"{store!r}{store.to_dict()}"
