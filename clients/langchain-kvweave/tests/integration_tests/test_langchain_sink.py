"""The sink and the mirrored store against a service: what a foreign index has, kvweave has."""

import logging
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.indexing import InMemoryRecordManager, aindex, index
from langchain_core.vectorstores import InMemoryVectorStore, VectorStoreRetriever

from kvweave_client import BadRequest, Client, ConnectionFailed, JobFailed, RequestError
from langchain_kvweave import KVWeaveSink, MirroredStore, mirrored

LEFT_ALONE = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def store(words: Embeddings) -> InMemoryVectorStore:
    return InMemoryVectorStore(words)


@pytest.fixture
def away(words: Embeddings) -> KVWeaveSink:
    """Of a service that is down."""
    return KVWeaveSink(collection="c", base_url=NOWHERE, max_retries=0)


def test_upserts_return_early_and_flush_waits(sink: KVWeaveSink, passages: list[str]) -> None:
    quick = sink.model_copy(update={"wait": False})
    for number, text in enumerate(passages):
        quick.upsert([Document(text, id=str(number))])
    quick.flush()
    assert [document.page_content for document in quick.get(["0", "1", "2", "3"])] == passages
    quick.flush()


async def test_upserts_return_early_and_aflush_waits(sink: KVWeaveSink, passages: list[str]) -> None:
    quick = sink.model_copy(update={"wait": False})
    await quick.aupsert([Document(text, id=str(number)) for number, text in enumerate(passages)])
    await quick.aflush()
    assert [document.page_content for document in await quick.aget(["0", "1", "2", "3"])] == passages


async def test_what_waits_to_be_computed_can_be_deleted(sink: KVWeaveSink, passages: list[str]) -> None:
    quick = sink.model_copy(update={"wait": False})
    many = [Document(f"{text} {number}", id=f"{number}") for number in range(20) for text in passages[:1]]
    quick.upsert(many)
    quick.delete([str(document.id) for document in many])
    quick.flush()
    assert quick.get([str(document.id) for document in many]) == []


def test_a_job_that_was_cancelled_is_told_once(sink: KVWeaveSink, client: Client, passages: list[str]) -> None:
    quick = sink.model_copy(update={"wait": False})
    quick.upsert([Document(f"{passages[0]} {number}", id=str(number)) for number in range(100)])
    client.cancel_job(quick._jobs[0])
    with pytest.raises(JobFailed, match="cancelled"):
        quick.flush()
    quick.flush()


def test_the_sinks_collection_is_searched_by_another_index_alone(
    sink: KVWeaveSink, client: Client, passages: list[str]
) -> None:
    sink.upsert([Document(passages[0], id="1")])
    assert client.collection(sink.collection).search is False
    with pytest.raises(BadRequest, match="without search"):
        client.search("Belford", collection=sink.collection)
    with pytest.raises(ValueError, match="search=True"):
        sink.invoke("Belford")


async def test_with_search_the_sink_is_a_retriever(sink: KVWeaveSink, passages: list[str]) -> None:
    searched = sink.model_copy(update={"search": True})
    kept = [Document(text, id=f"a/{number}", metadata={"n": number}) for number, text in enumerate(passages)]
    searched.upsert(kept)
    assert searched.invoke("Halio badger")[0] == kept[1]
    assert (await searched.ainvoke("Halio badger"))[0] == kept[1]


def test_a_collection_that_is_there_keeps_its_rules(sink: KVWeaveSink, client: Client) -> None:
    client.put_collection(sink.collection, chunk_tokens=64, search=True)
    sink.upsert([Document("text", id="1")])
    assert (client.collection(sink.collection).chunk_tokens, client.collection(sink.collection).search) == (64, True)


def test_metadata_that_is_not_json_is_no_error(sink: KVWeaveSink) -> None:
    odd = {
        "id": uuid4(),
        "n": np.int64(3),
        "inf": float("inf"),
        "set": {1},
        "\ud800": b"\xff",
        "none": None,
        "big": 10**400,
    }
    sink.upsert([Document("text\0 with \ud800", id="1", metadata={**odd, "deep": {"x": [odd]}})])
    [document] = sink.get(["1"])
    assert document.page_content == "text with ?" and document.metadata["n"] == 3


async def test_a_document_that_loses_its_text_leaves(sink: KVWeaveSink) -> None:
    sink.upsert([Document("text", id="1"), Document("text", id="2")])
    assert sink.upsert([Document("\n", id="1")]) == {"succeeded": [], "failed": ["1"]}
    assert await sink.aupsert([Document("", id="2")]) == {"succeeded": [], "failed": ["2"]}
    assert sink.get(["1", "2"]) == []


@pytest.mark.parametrize("name", ["ä/../%2F", ".", "..", " ", "a\nb", "x" * 800])
def test_any_id_names_its_document(sink: KVWeaveSink, name: str) -> None:
    sink.upsert([Document("text", id=name), Document("other text", id="other")])
    assert sink.get([name]) == [Document("text", id=name)]
    assert sink.delete([name]).get("succeeded") == [name]
    assert sink.get([name, "other"]) == [Document("other text", id="other")]


def test_an_id_that_kvweave_cannot_take_is_named(sink: KVWeaveSink) -> None:
    with pytest.raises(RequestError, match="xxx"):
        sink.upsert([Document("text", id="x" * 2000)])
    assert sink.delete(["x" * 2000]).get("num_deleted") == 0 and sink.get(["x" * 2000]) == []


def test_an_option_that_the_sink_has_not_is_named(sink: KVWeaveSink) -> None:
    with pytest.raises(TypeError, match="'batch'"):
        sink.upsert([], batch=3)


class Mirroring(RuleBasedStateMachine):
    """Whatever is written, the store and kvweave hold the same: what a dict would."""

    store: InMemoryVectorStore
    mirror: MirroredStore

    @initialize()
    def begin(self) -> None:
        self.mirror.delete(list(self.store.store))
        self.records = InMemoryRecordManager("tests")
        self.records.create_schema()
        self.added: dict[str, Document] = {}
        self.indexed: dict[str, Document] = {}

    texts = st.sampled_from([f"The {word} is here." for word in ("badger", "lamp", "painter", "page")])
    names = st.sampled_from(["1", "2", "3"])
    sources = st.sampled_from(["s", "t"])
    documents = st.lists(
        st.builds(lambda text, source: Document(text, metadata={"source": source}), texts, sources), max_size=4
    )

    @rule(pairs=st.dictionaries(names, texts, min_size=1), named=st.booleans())
    def add(self, pairs: dict[str, str], named: bool) -> None:  # noqa: FBT001
        documents = [Document(text, id=name, metadata={"n": name}) for name, text in pairs.items()]
        ids = self.mirror.add_documents(documents) if named else self.mirror.add_documents(documents, ids=list(pairs))
        self.added |= dict(zip(ids, documents, strict=True))

    @rule(text=texts, name=names | st.none())
    def add_text(self, text: str, name: str | None) -> None:
        [made] = self.mirror.add_texts([text], [{"n": 1}], ids=[name] if name else None)
        self.added[made] = Document(text, id=made, metadata={"n": 1})

    @rule(gone=st.sets(names))
    def delete(self, gone: set[str]) -> None:
        self.mirror.delete([*gone, "never there"])
        self.added = {name: document for name, document in self.added.items() if name not in gone}

    @rule(documents=documents, cleanup=st.sampled_from(["incremental", "full", None]))
    def index(self, documents: list[Document], cleanup: Any) -> None:  # noqa: ANN401 (LangChain's literals)
        index(documents, self.records, self.mirror, cleanup=cleanup, source_id_key="source", key_encoder="sha256")
        seen = {document.metadata["source"] for document in documents}
        kept = {
            key: old
            for key, old in self.indexed.items()
            if cleanup is None or (cleanup == "incremental" and old.metadata["source"] not in seen)
        }
        self.indexed = kept | {f"{each.metadata['source']} {each.page_content}": each for each in documents}

    @invariant()
    def same(self) -> None:
        in_store = {name: (each["text"], each["metadata"]) for name, each in self.store.store.items()}
        in_kvweave = self.mirror.sink.get(list(in_store))
        assert {each.id: (each.page_content, each.metadata) for each in in_kvweave} == in_store
        with Client(self.mirror.sink.base_url, self.key) as client:
            assert len(list(client.documents(collection=self.mirror.sink.collection))) == len(in_store)
        said = sorted([*self.added.values(), *self.indexed.values()], key=_text)
        assert [_text(each) for each in said] == sorted(f"{text} {metadata}" for text, metadata in in_store.values())

    key: str


def _text(document: Document) -> str:
    return f"{document.page_content} {document.metadata}"


def test_a_mirrored_store_and_kvweave_hold_the_same(
    sink: KVWeaveSink, store: InMemoryVectorStore, access: dict[str, Any]
) -> None:
    filled = type("Filled", (Mirroring,), {"store": store, "mirror": mirrored(store, sink), "key": access["api_key"]})
    run_state_machine_as_test(
        filled,
        settings=settings(max_examples=5, stateful_step_count=6, deadline=None, suppress_health_check=LEFT_ALONE),
    )


async def test_async_writes_go_to_both(sink: KVWeaveSink, store: InMemoryVectorStore, passages: list[str]) -> None:
    mirror = mirrored(store, sink)
    ids = await mirror.aadd_texts(passages[:2], [{"n": 0}, {"n": 1}])
    ids += await mirror.aadd_documents([Document(passages[2])], ids=["mine"])
    records = InMemoryRecordManager("tests")
    await aindex([Document(passages[3])], records, mirror, cleanup="full", key_encoder="sha256")
    assert sorted(each.page_content for each in await sink.aget(list(store.store))) == sorted(passages)
    await mirror.adelete(ids)
    assert [each.page_content for each in sink.get([*ids, *store.store])] == passages[3:]


def test_a_record_manager_fills_the_sink_alone(sink: KVWeaveSink, passages: list[str]) -> None:
    records = InMemoryRecordManager("tests")
    documents = [Document(text, metadata={"source": "a"}) for text in passages]
    told = index(documents, records, sink, cleanup="full", source_id_key="source", key_encoder="sha256")
    assert told["num_added"] == 4
    told = index(documents[1:], records, sink, cleanup="full", source_id_key="source", key_encoder="sha256")
    assert (told["num_deleted"], told["num_skipped"]) == (1, 3)


def test_reads_are_the_stores_alone(sink: KVWeaveSink, store: InMemoryVectorStore, passages: list[str]) -> None:
    mirror = mirrored(store, sink)
    mirror.add_texts(passages, ids=["0", "1", "2", "3"])
    query = "Which animal does Halio keep?"
    assert mirror.embeddings is store.embeddings
    assert mirror.similarity_search_with_score(query, k=2) == store.similarity_search_with_score(query, k=2)
    assert mirror.max_marginal_relevance_search(query, k=2) == store.max_marginal_relevance_search(query, k=2)
    assert mirror.get_by_ids(["2"]) == store.get_by_ids(["2"])
    assert mirror.search(query, "similarity", k=1) == store.similarity_search(query, k=1)
    assert mirror.similarity_search(query, filter=lambda each: "lamps" in each.page_content)
    assert mirror.dump == store.dump  # what InMemoryVectorStore has besides
    with pytest.raises(AttributeError, match="nothing"):
        _ = mirror.nothing


def test_its_retriever_writes_to_both(sink: KVWeaveSink, store: InMemoryVectorStore) -> None:
    retriever = mirrored(store, sink).as_retriever(search_kwargs={"k": 1})
    assert isinstance(retriever, VectorStoreRetriever) and retriever.search_kwargs == {"k": 1}
    [made] = retriever.add_documents([Document("text")])
    assert retriever.invoke("text") == sink.get([made]) == store.get_by_ids([made])


def test_the_store_has_what_kvweave_misses_and_a_second_write_repairs_it(
    sink: KVWeaveSink, away: KVWeaveSink, store: InMemoryVectorStore, passages: list[str]
) -> None:
    documents = [Document(text, metadata={"source": "a"}) for text in passages]
    records = InMemoryRecordManager("tests")
    options = {"cleanup": "full", "source_id_key": "source", "key_encoder": "sha256"}
    with pytest.raises(ConnectionFailed) as failed:
        index(documents, records, mirrored(store, away), **options)  # pyright: ignore[reportArgumentType]
    assert "add them again" in failed.value.__notes__[0]
    assert len(store.store) == len(passages)
    told = index(documents, records, mirrored(store, sink), **options)  # pyright: ignore[reportArgumentType]
    assert told["num_added"] == len(store.store) == len(sink.get(list(store.store))) == len(passages)


async def test_without_strict_what_kvweave_misses_is_logged(
    away: KVWeaveSink, store: InMemoryVectorStore, caplog: pytest.LogCaptureFixture
) -> None:
    mirror = mirrored(store, away, strict=False)
    with caplog.at_level(logging.WARNING):
        mirror.add_texts(["text"])
        await mirror.aadd_documents([Document("other text")])
    assert len(store.store) == 2
    assert [record.getMessage()[:33] for record in caplog.records] == ["kvweave missed 1 documents of 'c'"] * 2


@pytest.mark.parametrize("strict", [True, False])
async def test_a_deletion_that_kvweave_misses_is_always_an_error(
    away: KVWeaveSink,
    store: InMemoryVectorStore,
    strict: bool,  # noqa: FBT001
) -> None:
    store.add_texts(["text"], ids=["1"])
    mirror = mirrored(store, away, strict=strict)
    with pytest.raises(ConnectionFailed) as failed:
        mirror.delete(["1"])
    assert "delete them again" in failed.value.__notes__[0] and not store.store
    with pytest.raises(ConnectionFailed):
        await mirror.adelete(["1"])


class Refusing(InMemoryVectorStore):
    """Of a store that fails, or says nothing of its ids."""

    def delete(self, ids: Any = None, **kwargs: Any) -> Any:  # noqa: ANN401 (as its base has it)
        return False

    def add_texts(self, texts: Any, metadatas: Any = None, **kwargs: Any) -> list[str]:  # noqa: ANN401
        return []


def test_what_the_store_did_not_do_kvweave_does_not_do(sink: KVWeaveSink, words: Embeddings) -> None:
    mirror = mirrored(Refusing(words), sink)
    sink.upsert([Document("text", id="1")])
    assert mirror.delete(["1"]) is False and len(sink.get(["1"])) == 1
    with pytest.raises(RequestError, match="give them ids"):
        mirror.add_texts(["other"])
    mirror.add_texts(["other"], ids=["2"])
    assert len(sink.get(["2"])) == 1


def test_a_deletion_names_ids(sink: KVWeaveSink, store: InMemoryVectorStore, words: Embeddings) -> None:
    with pytest.raises(ValueError, match="name the ids"):
        mirrored(store, sink).delete()
    with pytest.raises(NotImplementedError, match="mirrored"):
        MirroredStore.from_texts(["text"], words)
