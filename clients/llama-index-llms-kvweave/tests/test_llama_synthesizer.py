"""The synthesizer: nodes go by chunk id or as documents, and what the answer cost comes with it."""

from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest
from llama_index.core.base.llms.types import MessageRole
from llama_index.core.base.response.schema import AsyncStreamingResponse, PydanticResponse, Response, StreamingResponse
from llama_index.core.bridge.pydantic import BaseModel
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.llms import MockLLM
from llama_index.core.prompts import ChatPromptTemplate, PromptTemplate
from llama_index.core.schema import ImageNode, NodeWithScore, TextNode

from clients.tests.heard import Ear
from kvweave_client import Client, NotFound, operations
from kvweave_client.passages import CHUNK_ID, DIGEST, digest_of
from llama_index.llms.kvweave import KVWeave, KVWeaveSynthesizer

Models = Callable[..., KVWeave]
HALIO, SELARK = "Halio lives in K7. Halio keeps a badger.", "Rosen leads B4. Code B4 stands for Selark."
QUERY = "Which animal does Halio keep?"


@pytest.fixture(scope="module")
def known(client: Client, _numbers: Iterator[int]) -> list[NodeWithScore]:
    """Nodes of two chunks that kvweave holds, as its retriever notes them."""
    name = f"synthesizer-{next(_numbers)}"
    chunks = [{"id": str(at), "text": text} for at, text in enumerate([HALIO, SELARK])]
    client.wait(client.put_documents([{"id": name, "chunks": chunks}]).job_id, timeout_s=60)  # pyright: ignore[reportArgumentType] (as it should be)
    return [node_of(each.text, each.chunk_id) for each in client.chunks(name)]


def node_of(text: str, chunk_id: str = "", **metadata: object) -> NodeWithScore:
    told = {CHUNK_ID: chunk_id, DIGEST: digest_of(text)} if chunk_id else {}
    node = TextNode(text=text, metadata={**metadata, **told}, excluded_llm_metadata_keys=[*told])
    return NodeWithScore(node=node, score=1.0)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options of each chat that the client sends."""
    found: list[dict[str, Any]] = []
    chat = operations.chat
    monkeypatch.setattr(operations, "chat", lambda turns, **options: found.append(options) or chat(turns, **options))
    return found


async def test_all_ways_say_the_same_and_tell_the_usage(llm: KVWeave, known: list[NodeWithScore]) -> None:
    whole, streaming = KVWeaveSynthesizer(llm), KVWeaveSynthesizer(llm, streaming=True)
    whole.synthesize(QUERY, known)  # the head of the template is in the prefix cache from now on
    first, second = whole.synthesize(QUERY, known), await whole.asynthesize(QUERY, known)
    third, fourth = streaming.synthesize(QUERY, known), await streaming.asynthesize(QUERY, known)
    assert isinstance(first, Response) and isinstance(second, Response)
    assert isinstance(third, StreamingResponse) and isinstance(fourth, AsyncStreamingResponse)
    texts = [first.response, second.response, "".join(third.response_gen)]
    texts.append("".join([each async for each in fourth.async_response_gen()]))
    assert texts == ["badger"] * 4
    told = [each.metadata["kvweave"] for each in (first, second, third, fourth)]  # pyright: ignore[reportOptionalSubscript] (it is there)
    assert len({each["usage"]["reused_tokens"] for each in told}) == 1 and told[0]["usage"]["reused_tokens"] > 0
    assert all(each["finish_reason"] == "stop" and len(each["report"]["chunks"]) == 2 for each in told)
    assert first.source_nodes == known and set(known[0].node.metadata) == {CHUNK_ID, DIGEST}


def test_nodes_of_kvweave_go_by_chunk_id(llm: KVWeave, known: list[NodeWithScore], sent: list[dict[str, Any]]) -> None:
    KVWeaveSynthesizer(llm).synthesize(QUERY, [*known, known[0]])
    assert sent[0]["chunk_ids"] == [each.node.metadata[CHUNK_ID] for each in known] and "documents" not in sent[0]


def test_the_first_chunk_stands_right_behind_the_prefix_that_it_was_captured_behind(
    llm: KVWeave, known: list[NodeWithScore], heard: Ear
) -> None:
    KVWeaveSynthesizer(llm).synthesize(QUERY, known[:1])
    [call] = heard.calls
    assert call.usage["reused_tokens"] > call.usage["recomputed_tokens"]


def test_nodes_of_others_go_as_documents_and_are_recognised(
    llm: KVWeave, known: list[NodeWithScore], sent: list[dict[str, Any]], heard: Ear
) -> None:
    foreign = [node_of(f"\n{HALIO} ", lang="en"), node_of("Nobody knows this."), node_of(" ")]
    nodes = [*foreign, NodeWithScore(node=ImageNode(image_url="http://localhost/i.png"))]
    assert str(KVWeaveSynthesizer(llm).synthesize(QUERY, nodes)) == "badger"
    assert [each["text"] for each in sent[0]["documents"]] == [f"lang: en\n\n\n{HALIO}", "Nobody knows this."]
    assert "chunk_ids" not in sent[0]
    [source] = heard.calls[0].sources
    assert source != "computed" and heard.calls[0].usage["reused_tokens"] > 0


def test_a_node_that_was_changed_on_its_way_goes_as_it_is_now(
    llm: KVWeave, known: list[NodeWithScore], sent: list[dict[str, Any]]
) -> None:
    chunk_id = known[0].node.metadata[CHUNK_ID]
    changed, shown = node_of(HALIO, chunk_id), node_of(HALIO, chunk_id, lang="en")
    changed.node.set_content(HALIO.replace("badger", "heron"))
    assert str(KVWeaveSynthesizer(llm).synthesize(QUERY, [changed])) == "heron"
    assert str(KVWeaveSynthesizer(llm).synthesize(QUERY, [shown])) == "badger"
    assert [each["documents"][0]["text"] for each in sent] == [changed.text, f"lang: en\n\n{HALIO}"]
    assert not any("chunk_ids" in each for each in sent)


async def test_a_chunk_that_is_gone_meanwhile_goes_as_text(
    llm: KVWeave, known: list[NodeWithScore], sent: list[dict[str, Any]]
) -> None:
    gone = [known[1], node_of(HALIO, "0" * 32)]
    for streaming in (False, True):
        synthesizer = KVWeaveSynthesizer(llm, streaming=streaming)
        assert str(synthesizer.synthesize(QUERY, gone)) == "badger"
        response = await synthesizer.asynthesize(QUERY, gone)
        said = (
            [each async for each in response.async_response_gen()]
            if isinstance(response, AsyncStreamingResponse)
            else [str(response)]
        )
        assert "".join(said) == "badger"
    assert [[each["text"] for each in options.get("documents", [])] for options in sent] == [[], [SELARK, HALIO]] * 2
    with pytest.raises(NotFound):
        llm.complete(QUERY, chunk_ids=["0" * 32])


def test_no_nodes_are_an_empty_response_as_with_others(llm: KVWeave, sent: list[dict[str, Any]]) -> None:
    assert str(KVWeaveSynthesizer(llm).synthesize(QUERY, [])) == "Empty Response"
    assert str(KVWeaveSynthesizer(llm, streaming=True, empty_response="Nothing.").synthesize(QUERY, [])) == "Nothing."
    assert sent == []


def test_texts_may_be_given_as_to_other_synthesizers(llm: KVWeave) -> None:
    assert KVWeaveSynthesizer(llm).get_response(QUERY, [HALIO]) == "badger"


def test_the_question_is_written_as_one_likes(models: Models, known: list[NodeWithScore], heard: Any) -> None:  # noqa: ANN401
    llm = models(system_prompt="Be brief.")
    synthesizer = KVWeaveSynthesizer(llm, question_template=PromptTemplate("Question: {query_str}"))
    synthesizer.synthesize(QUERY, known)
    said = [(each.role, each.content) for each in heard.calls[0].messages]
    assert said == [(MessageRole.SYSTEM, "Be brief."), (MessageRole.USER, f"Question: {QUERY}")]
    own = ChatPromptTemplate.from_messages([("user", "Tell me: {query_str}")])
    synthesizer.update_prompts({"question_template": own})
    synthesizer.synthesize(QUERY, known)
    assert heard.calls[1].messages[-1].content == f"Tell me: {QUERY}"


class Kept(BaseModel):
    """An animal that somebody keeps."""

    animal: Literal["badger", "heron"]


async def test_answers_may_be_objects(llm: KVWeave, known: list[NodeWithScore]) -> None:
    for synthesizer in (KVWeaveSynthesizer(llm, output_cls=Kept), KVWeaveSynthesizer(llm.as_structured_llm(Kept))):
        for response in (synthesizer.synthesize(QUERY, known), await synthesizer.asynthesize(QUERY, known)):
            assert isinstance(response, PydanticResponse) and response.response == Kept(animal="badger")


def test_who_listens_hears_of_it(llm: KVWeave, known: list[NodeWithScore], heard: Ear) -> None:
    debug = LlamaDebugHandler(print_trace_on_end=False)
    KVWeaveSynthesizer(llm.model_copy(), callback_manager=CallbackManager([debug])).synthesize(QUERY, known)
    assert len(debug.get_event_pairs(CBEventType.SYNTHESIZE)) == len(debug.get_event_pairs(CBEventType.LLM)) == 1
    wanted = ["Synthesize", "GetResponse", "LLMChat"]
    assert {f"{name}{end}Event" for name in wanted for end in ("Start", "End")} <= {*heard.names}


def test_another_model_is_refused() -> None:
    with pytest.raises(TypeError, match="KVWeave model, got MockLLM"):
        KVWeaveSynthesizer(MockLLM())
