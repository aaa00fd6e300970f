"""The sink in LlamaIndex's pipeline: what kvweave holds is what came through, also after changes and failures."""

import gc
import logging
import math
import pickle
from collections.abc import Callable, Iterator, Sequence

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.schema import BaseNode, Document, NodeRelationship, RelatedNodeInfo, TextNode, TransformComponent

from clients.conftest import Running
from clients.tests.line import Line
from kvweave_client import BadRequest, Client, ConnectionFailed, JobFailed, Retries, Unauthorized, following
from llama_index.retrievers.kvweave import KVWeaveRetriever, KVWeaveSink, books
from llama_index.retrievers.kvweave.nodes import NODE_ID

Sinks = Callable[..., KVWeaveSink]
Step = tuple[str, str, list[int]]
HALIO, SELARK, NORWORKS = "Halio lives in K7.", "Selark is led by Rosen.", "Norworks makes lamps."


def node(name: str, text: str, *, source: str = "doc", **fields: object) -> TextNode:
    relationships = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id=source)}
    return TextNode.model_validate({"id_": name, "text": text, "relationships": relationships, **fields})


def kept(client: Client, sink: KVWeaveSink) -> dict[str, str]:
    """The texts that kvweave holds, by node, when all is computed."""
    sink.flush(60)
    listed = client.documents(collection=sink.collection)
    return {
        str(each.metadata.get(NODE_ID, each.id)): "|".join(chunk.text for chunk in client.chunks(each.id))
        for each in listed
    }


def test_nodes_come_out_as_they_went_in_and_are_registered_with_the_metadata_of_prompts(
    client: Client, sinks: Sinks
) -> None:
    sink = sinks()
    nodes = [node("a", HALIO, metadata={"lang": "en"}), node("b", SELARK)]
    before = [each.model_dump() for each in nodes]
    assert sink(nodes) is nodes and [each.model_dump() for each in nodes] == before
    assert sink.registered() == {"a", "b"}
    assert kept(client, sink) == {"a": f"lang: en\n\n{HALIO}", "b": SELARK}


async def test_the_asynchronous_way_does_the_same(client: Client, sinks: Sinks) -> None:
    sink, nodes = sinks(), [node("a", HALIO)]
    assert await sink.acall(nodes) is nodes
    assert kept(client, sink) == {"a": HALIO}


def test_nodes_replace_those_of_their_source_that_came_before_at_once(client: Client, sinks: Sinks) -> None:
    sink = sinks()
    sink([node("a", HALIO), node("b", SELARK), node("c", NORWORKS, source="other")])
    sink([node("b", f"{SELARK} Or was."), node("d", HALIO)])
    assert sink.registered() == {"b", "c", "d"}
    assert kept(client, sink) == {"b": f"{SELARK} Or was.", "c": NORWORKS, "d": HALIO}


def test_without_replacing_a_source_may_come_in_several_calls(sinks: Sinks) -> None:
    sink = sinks(replaces=False)
    sink([node("a", HALIO)])
    sink([node("b", SELARK)])
    assert sink.registered() == {"a", "b"}


def test_a_node_that_has_no_text_any_more_is_gone(sinks: Sinks) -> None:
    sink = sinks(replaces=False)
    sink([node("a", HALIO)])
    sink([node("a", " ")])
    assert sink.registered() == set()


def test_deletions_reach_what_is_not_computed_yet_and_what_another_process_put_in(client: Client, sinks: Sinks) -> None:
    first, other = sinks(), sinks()
    first([node(str(number), f"{HALIO} {number}", source="doc") for number in range(20)])
    other([node("x", SELARK, source="else"), node("y", NORWORKS, source="else")])
    first.delete("doc")
    other.delete_nodes(["x", "unknown"])
    other.flush(60)  # the first waits for others once alone, before it writes
    assert first.registered() == other.registered() == {"y"}
    sinks().delete(["else", "doc"])
    assert kept(client, other) == {}


def test_clear_leaves_what_others_put_into_the_collection(client: Client, sinks: Sinks, collection: str) -> None:
    sink = sinks()
    sink([node("a", HALIO)])
    sink.clear()
    assert sink.registered() == set() and not any(each.name == collection for each in client.collections())
    sink([node("a", HALIO)])
    own = f"{collection}-own"
    client.wait(client.put_documents([{"id": own, "text": SELARK}], collection=collection).job_id)
    sink.clear()
    assert kept(client, sink) == {own: SELARK}


@pytest.mark.parametrize("meanwhile", [False, True])
def test_a_job_that_failed_is_told_once_whatever_came_meanwhile(
    client: Client, sinks: Sinks, *, meanwhile: bool
) -> None:
    sink = sinks()
    sink([node(str(number), f"{HALIO} {number}", source="long") for number in range(100)])
    client.cancel_job(next(client.jobs()).id)
    if meanwhile:
        sink([node("b", SELARK)])
    with pytest.raises(JobFailed, match="cancelled"):
        sink.flush(60)
    sink.flush(60)


def test_nodes_of_that_name_in_another_collection_are_others(client: Client, sinks: Sinks, collection: str) -> None:
    first, second = sinks(), sinks(collection=f"{collection}-own")
    for sink, text in ((first, HALIO), (second, SELARK)):
        sink([node("a", text)])
    assert (kept(client, first), kept(client, second)) == ({"a": HALIO}, {"a": SELARK})
    first.delete_nodes("a")
    first.delete("doc")
    assert (kept(client, first), kept(client, second)) == ({}, {"a": SELARK})


def test_a_collection_is_made_without_search_and_one_that_is_there_stays_as_it_is(
    client: Client, service: Running, sinks: Sinks, collection: str
) -> None:
    sinks()([node("a", HALIO)])
    assert client.collection(collection).search is False
    own = f"{collection}-own"
    client.put_collection(own, chunk_tokens=99, system="Be brief.")
    sink = sinks(collection=own)
    sink([node("b", f"{HALIO} {SELARK}", source="letter", metadata={"lang": "en"})])
    sink.flush(60)
    assert (client.collection(own).chunk_tokens, client.collection(own).search) == (99, True)
    [found] = KVWeaveRetriever(own, base_url=service.base_url, api_key=service.key).retrieve("Selark")
    assert (found.node.node_id, found.node.ref_doc_id) == ("b", "letter")
    assert found.node.metadata["lang"] == "en"


class Numbered(TransformComponent):
    """Cuts a document into sentences, with ids that tell where they are."""

    def __call__(self, nodes: Sequence[BaseNode], **kwargs: object) -> list[BaseNode]:
        return [
            node(f"{each.id_}/{at}", f"{sentence}.", source=each.id_)
            for each in nodes
            for at, sentence in enumerate(each.get_content().removesuffix(".").split(". "))
        ]


def test_a_pipelines_cache_does_not_pass_over_what_changed_since(client: Client, sinks: Sinks) -> None:
    sink = sinks()
    pipeline = IngestionPipeline(transformations=[Numbered(), sink])
    for text in (f"{HALIO} {SELARK}", NORWORKS, f"{HALIO} {SELARK}"):
        nodes = pipeline.run(documents=[Document(id_="doc", text=text)])
        assert kept(client, sink) == {each.node_id: each.get_content() for each in nodes}


def test_a_copy_in_another_process_registers_too_and_the_key_shows_nowhere(
    client: Client, service: Running, sinks: Sinks, collection: str
) -> None:
    sink = sinks(strict=True)
    copied = pickle.loads(pickle.dumps(sink))
    copied([node("a", HALIO)])
    assert sink.registered() == {"a"} and copied.strict
    shown = f"{sink!r}{sink}{sink.to_dict()}{sink.to_json()}{sink.model_dump()}{sink.model_dump_json()}"
    assert service.key not in shown and collection in shown
    deep = sink.model_copy(deep=True)
    assert deep.registered() == {"a"}


@pytest.mark.long
def test_workers_of_a_pipeline_register_what_they_are_given(client: Client, service: Running, collection: str) -> None:
    sink = KVWeaveSink(collection=collection, base_url=service.base_url, api_key=service.key, strict=True)
    documents = [Document(id_=f"d{number}", text=f"{HALIO} {number}") for number in range(4)]
    IngestionPipeline(transformations=[sink]).run(documents=documents, num_workers=2)
    assert sink.registered() == {each.id_ for each in documents}
    sink.delete([each.id_ for each in documents])
    assert sink.registered() == set()


def test_where_the_service_is_away_the_pipeline_goes_on_and_deletions_are_made_up_for(
    client: Client, sinks: Sinks, line: Line, caplog: pytest.LogCaptureFixture
) -> None:
    sink = sinks()
    sink([node("a", HALIO), node("b", SELARK), node("c", NORWORKS, source="other")])
    line.left = 0
    with caplog.at_level(logging.WARNING):
        nodes = [node("d", NORWORKS)]
        assert sink(nodes) is nodes
    assert "the line is cut" in caplog.text and HALIO not in caplog.text
    sent = line.sent
    sink.delete("other")
    assert line.sent == sent, "a service that was just away is not asked again at once"
    assert (sink.owed.ref_docs, "d" in sink.owed.nodes) == ({"doc", "other"}, True)
    with pytest.raises(ConnectionFailed):
        sink.settle()
    line.left = math.inf
    sink.settle()
    assert not sink.owed and sink.registered() == set()
    sink([node("d", NORWORKS)])
    assert kept(client, sink) == {"d": NORWORKS}


def test_what_is_owed_at_the_end_is_said(sinks: Sinks, line: Line, caplog: pytest.LogCaptureFixture) -> None:
    sink = sinks()
    line.left = 0
    sink.delete("doc")
    caplog.clear()
    del sink
    gc.collect()
    assert "still holds what was deleted" in caplog.text


def test_strict_is_an_error_and_the_same_call_again_mends_it(client: Client, sinks: Sinks, line: Line) -> None:
    sink = sinks(strict=True)
    sink([node("a", HALIO)])
    line.left = 0
    with pytest.raises(ConnectionFailed, match="cannot be reached"):
        sink([node("b", SELARK)])
    line.left = math.inf
    assert sink.owed.nodes == {"b"}
    sink([node("b", SELARK)])
    assert not sink.owed and kept(client, sink) == {"b": SELARK}


def test_what_was_safe_before_the_service_went_away_is_not_owed(
    client: Client, sinks: Sinks, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "MOST", 1)
    sink = sinks(replaces=False)
    sink([node("a", HALIO)])
    line.left = 2
    sink([node("b", SELARK), node("c", NORWORKS), node("d", HALIO)])
    line.left = math.inf
    assert sink.owed.nodes == {"d"}
    sink.settle()
    assert kept(client, sink) == {"a": HALIO, "b": SELARK, "c": NORWORKS}


def test_what_only_an_operator_can_mend_is_raised_in_any_case(service: Running, collection: str) -> None:
    with pytest.raises(Unauthorized):
        KVWeaveSink(collection=collection, base_url=service.base_url, api_key="wrong")([node("a", HALIO)])
    with pytest.raises(BadRequest):
        KVWeaveSink(collection="c" * 200, base_url=service.base_url, api_key=service.key)([node("a", HALIO)])


SOURCES, TEXTS = ["p", "q"], [HALIO, SELARK, NORWORKS]
STEPS = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(SOURCES), st.lists(st.integers(0, 2), min_size=1, max_size=3)),
    st.tuples(st.just("delete"), st.sampled_from(SOURCES), st.just([])),
    st.tuples(st.just("nodes"), st.sampled_from(SOURCES), st.lists(st.integers(0, 2), max_size=2)),
    st.tuples(st.just("clear"), st.just(""), st.just([])),
)


@pytest.fixture(scope="module")
def numbers(_numbers: Iterator[int]) -> Iterator[int]:
    return _numbers


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.lists(st.tuples(STEPS, st.integers(0, 6)), max_size=6))
def test_it_never_holds_what_it_should_not_whenever_the_line_is_cut(
    client: Client, service: Running, numbers: Iterator[int], steps: list[tuple[Step, int]]
) -> None:
    """Model: the nodes of each source, as an index has them. Of a step's requests some succeed, then one is served and
    its answer is lost, and all others do not arrive."""
    name = f"cut-{next(numbers)}"
    cut: list[int] = []

    class Cut(httpx.HTTPTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            cut[:] = [each - 1 for each in cut]
            if not cut or cut[0] >= -1:
                response = super().handle_request(request)
                if not cut or cut[0] >= 0:
                    return response
                response.close()
            raise httpx.ReadError("cut", request=request)

    with httpx.Client(transport=Cut()) as http, pytest.MonkeyPatch.context() as patch:
        patch.setattr(books, "PAUSE_S", 0.0)
        over = Client(service.base_url, service.key, retries=Retries(most=0), http=http)
        sink = KVWeaveSink(collection=name, base_url=service.base_url, api_key=service.key).using(over)
        index: dict[str, tuple[str, str]] = {}
        for (what, source, chosen), budget in steps:
            cut[:] = [budget] if budget < 6 else []
            ids = [f"{source}{number}" for number in chosen]
            if what == "put":
                index = {each: held for each, held in index.items() if held[0] != source}
                texts = {each: TEXTS[(len(index) + number) % 3] for each, number in zip(ids, chosen, strict=True)}
                index |= {each: (source, text) for each, text in texts.items()}
                sink([node(each, text, source=source) for each, text in texts.items()])
            elif what == "delete":
                index = {each: held for each, held in index.items() if held[0] != source}
                sink.delete(source)
            elif what == "nodes":
                index = {each: held for each, held in index.items() if each not in ids}
                sink.delete_nodes(ids)
            else:
                index = {}
                sink.clear()
        cut.clear()
        sink.settle()
        wanted = {each: text for each, (_, text) in index.items()}
        assert kept(client, sink).items() <= wanted.items()
        for source in SOURCES:
            sink([node(each, text, source=source) for each, (held, text) in index.items() if held == source])
        assert kept(client, sink) == wanted
