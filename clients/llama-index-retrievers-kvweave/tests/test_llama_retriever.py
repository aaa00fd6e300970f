"""The retriever through LlamaIndex's surface: what its nodes hold, and how they stand in prompts."""

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.instrumentation import root_dispatcher  # pyright: ignore[reportPrivateImportUsage] (its own)
from llama_index.core.schema import MetadataMode, NodeWithScore, TextNode
from llama_index.core.vector_stores import MetadataFilter, MetadataFilters

from clients.conftest import Running
from clients.tests.heard import Ear
from kvweave_client import Client, ConnectionFailed, Source, Unauthorized
from kvweave_client.options import NewDocument
from kvweave_client.passages import CACHE, CHUNK_ID, DIGEST, DOCUMENT_ID, SCORE, TITLE, digest_of
from llama_index.retrievers.kvweave import KVWeaveRetriever
from llama_index.retrievers.kvweave.nodes import nodes_of

SHARED = "Halio lives in K7. Halio keeps a badger."
DOCUMENTS: list[NewDocument] = [
    {"id": "letter", "title": "Letter 40", "text": SHARED, "metadata": {"lang": "en", "score": "the user's"}},
    {"id": "copy", "text": SHARED, "metadata": {"lang": "de"}},
    {"id": "twice", "chunks": [{"text": SHARED}, {"text": "Norworks makes lamps."}, {"text": SHARED}]},
    {"id": "spaced", "chunks": [{"text": "  Selark is led by Rosen.\n\n"}]},
    {
        "id": "long",
        "chunks": [{"text": "It rained on Monday."}, {"text": "Dalware makes ropes."}, {"text": "It ended."}],
    },
]


@pytest.fixture(scope="module")
def put_in(client: Client, _numbers: Iterator[int]) -> str:
    name = f"retriever-{next(_numbers)}"
    documents: list[NewDocument] = [{**each, "id": f"{name}/{each.get('id')}"} for each in DOCUMENTS]
    client.wait(client.put_documents(documents, collection=name).job_id, timeout_s=120)
    return name


@pytest.fixture
def options(service: Running, put_in: str) -> dict[str, Any]:
    return {"collection": put_in, "base_url": service.base_url, "api_key": service.key}


async def test_both_ways_find_what_the_client_finds_in_its_order(
    client: Client, options: dict[str, Any], put_in: str
) -> None:
    retriever = KVWeaveRetriever(**options)
    found, hits = retriever.retrieve("Halio badger"), client.search("Halio badger", collection=put_in, top_k=5)
    assert [(each.text, each.score) for each in found] == [(hit.text, hit.score) for hit in hits]
    assert [each.node.metadata[CHUNK_ID] for each in found] == [hit.chunk_id for hit in hits]
    assert await retriever.aretrieve("Halio badger") == found


def test_each_hit_is_a_node_of_its_own_also_where_texts_are_the_same(options: dict[str, Any]) -> None:
    retriever = KVWeaveRetriever(**options, similarity_top_k=1, neighbors=1, mode="lexical")
    found = retriever.retrieve("Norworks lamps")
    assert [each.node.ref_doc_id for each in found] == [each.node.metadata[DOCUMENT_ID] for each in found]
    assert len({each.node.node_id for each in found}) == len(found) >= 2


def test_nodes_have_ids_of_their_own_and_the_same_ones_again() -> None:
    places = [("a", "0" * 32), ("b", "0" * 32), ("a", "0" * 32), ("a", "1" * 32)]
    hits = [Source(chunk, document, "", 1.0, "Text.", {}) for document, chunk in places]
    ids = [each.node.node_id for each in nodes_of(hits, {})]
    assert len(set(ids)) == 4 and ids == [each.node.node_id for each in nodes_of(hits, {})]


def test_the_text_stands_alone_in_prompts_and_keeps_its_white_space(options: dict[str, Any]) -> None:
    for each in KVWeaveRetriever(**options).retrieve("Halio Selark Rosen badger"):
        assert isinstance(each.node, TextNode)
        for mode in (MetadataMode.LLM, MetadataMode.EMBED, MetadataMode.NONE):
            assert each.node.get_content(metadata_mode=mode) == each.node.text
        assert each.node.metadata[DIGEST] == digest_of(each.node.text)
    [spaced] = [each for each in KVWeaveRetriever(**options).retrieve("Selark Rosen") if "Selark" in each.text]
    assert spaced.text == "  Selark is led by Rosen.\n\n"


def test_metadata_hold_the_users_beside_ours(options: dict[str, Any]) -> None:
    wanted = MetadataFilters(filters=[MetadataFilter(key="lang", value="en")])
    [found] = KVWeaveRetriever(**options, filters=wanted).retrieve("badger")
    metadata = found.node.metadata
    assert (metadata["score"], metadata["lang"], metadata[TITLE]) == ("the user's", "en", "Letter 40")
    assert (metadata[SCORE], metadata[CACHE]) == (found.score, "stored")


def test_metadata_that_prompts_should_show_stand_before_the_text(options: dict[str, Any]) -> None:
    retriever = KVWeaveRetriever(**options, filters={"lang": "en"}, llm_metadata_keys=["lang"])
    [found] = retriever.retrieve("badger")
    assert found.node.get_content(metadata_mode=MetadataMode.LLM) == f"lang: en\n\n{SHARED}"


def test_neighbors_and_mode_are_kvweaves(options: dict[str, Any]) -> None:
    retriever = KVWeaveRetriever(**options, similarity_top_k=1, neighbors=1, mode="lexical")
    texts = [each.text for each in retriever.retrieve("Dalware ropes")]
    assert sorted(texts) == ["Dalware makes ropes.", "It ended.", "It rained on Monday."]


def test_nothing_found_is_no_nodes(options: dict[str, Any]) -> None:
    assert KVWeaveRetriever(**options, filters={"lang": "none"}).retrieve("badger") == []


def test_a_cache_that_was_given_up_shows(client: Client, options: dict[str, Any]) -> None:
    retriever = KVWeaveRetriever(**options, similarity_top_k=1)
    [found] = retriever.retrieve("Norworks lamps")
    client.evict(chunk_ids=[found.node.metadata[CHUNK_ID]])
    [again] = retriever.retrieve("Norworks lamps")
    assert (found.node.metadata[CACHE], again.node.metadata[CACHE]) == ("stored", "absent")
    [unasked] = KVWeaveRetriever(**options, similarity_top_k=1, cache_state=False).retrieve("Norworks lamps")
    assert CACHE not in unasked.node.metadata


def test_who_listens_hears_of_it(options: dict[str, Any]) -> None:
    dispatcher, ear, debug = root_dispatcher, Ear(), LlamaDebugHandler(print_trace_on_end=False)
    dispatcher.add_event_handler(ear)
    try:
        found = KVWeaveRetriever(**options, callback_manager=CallbackManager([debug])).retrieve("badger")
    finally:
        dispatcher.event_handlers.remove(ear)
    assert ear.names == ["RetrievalStartEvent", "RetrievalEndEvent"]
    [(_, ended)] = debug.get_event_pairs(CBEventType.RETRIEVE)
    assert ended.payload and ended.payload["nodes"] == found


def test_one_retriever_serves_several_event_loops_and_leaves_nothing_open(options: dict[str, Any]) -> None:
    async def twice(retriever: KVWeaveRetriever) -> list[list[NodeWithScore]]:
        return [*await asyncio.gather(retriever.aretrieve("badger"), retriever.aretrieve("badger"))]

    def several(retriever: KVWeaveRetriever) -> list[list[NodeWithScore]]:
        return [each for _ in range(3) for each in asyncio.run(twice(retriever))]

    found = several(KVWeaveRetriever(**options))
    assert all(each == found[0] and each for each in found)
    gc.collect()


def test_address_and_key_may_be_in_the_environment(
    service: Running, put_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVWEAVE_BASE_URL", f"{service.base_url}/v1/")
    monkeypatch.setenv("KVWEAVE_API_KEY", service.key)
    assert KVWeaveRetriever(put_in).retrieve("badger")


async def test_errors_come_through_as_the_clients_and_without_the_key(
    service: Running, options: dict[str, Any]
) -> None:
    wrong = KVWeaveRetriever(**{**options, "api_key": "kvw_wrong_key"})
    with pytest.raises(Unauthorized):
        wrong.retrieve("badger")
    with pytest.raises(Unauthorized) as raised:
        await wrong.aretrieve("badger")
    assert "kvw_wrong_key" not in f"{raised.value!r}{wrong!r}{vars(wrong)!r}"
    nowhere = KVWeaveRetriever(**{**options, "base_url": "http://127.0.0.1:9"}, max_retries=0)
    with pytest.raises(ConnectionFailed, match="cannot be reached"):
        nowhere.retrieve("badger")
    with pytest.raises(ConnectionFailed, match="cannot be reached"):
        await nowhere.aretrieve("badger")
