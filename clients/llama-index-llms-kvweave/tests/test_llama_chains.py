"""Chains as LlamaIndex builds them: what stands in their prompts is taken from the cache, and they answer."""

import hashlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.chat_engine import CondensePlusContextChatEngine, ContextChatEngine
from llama_index.core.chat_engine.types import BaseChatEngine
from llama_index.core.indices.prompt_helper import PromptHelper
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import CompactAndRefine, ResponseMode
from llama_index.core.schema import Document, MetadataMode, NodeWithScore
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.workflow import StartEvent, StopEvent, Workflow, step

from clients.conftest import Running
from clients.tests.heard import Call, Ear
from kvweave_client import Client
from llama_index.llms.kvweave import KVWeave, KVWeaveSynthesizer
from llama_index.llms.kvweave import turns as own

kvweave_retrievers = pytest.importorskip("llama_index.retrievers.kvweave")

LETTERS = {
    f"letter-{at}": f"{name} lives in {town}. {name} keeps a {animal}. The ink is easy to read. A copy is kept in "
    f"the cellar of {town}. {name} makes lamps for Norworks, and some are sold in {town}. All of this was read aloud. "
    f"The road from {town} was slow, as it had rained. {name} wrote it down {at} days later, and nobody asked for more."
    for at, (name, town, animal) in enumerate(
        [
            ("Halio", "Belford", "badger"),
            ("Minis", "Oskton", "goat"),
            ("Joren", "Kelhaven", "heron"),
            ("Sela", "Norton", "pony"),
            ("Coren", "Jasport", "fox"),
            ("Laren", "Halbury", "hedgehog"),
        ]
    )
}
QUESTION = "Which animal does Halio of Belford keep?"
REUSE = {"policy": "reuse"}

Models = Callable[..., KVWeave]


@pytest.fixture(scope="module")
def service(own_service: Running) -> Running:
    """A service of this file's own: other documents would weigh in the ranks of words."""
    return own_service


class HashedWords(BaseEmbedding):
    """Texts are near where they share words."""

    def _get_text_embedding(self, text: str) -> list[float]:
        vector = [0.0] * 64
        for word in re.findall(r"\w+", text.lower()):
            vector[hashlib.sha256(word.encode()).digest()[0] % 64] += 1.0
        return vector

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)


def share(llm: KVWeave, call: Call, nodes: Sequence[NodeWithScore]) -> float:
    """Of the context's tokens, those that came from the caches of its chunks. It is what makes the prompt longer."""
    texts = [each.node.get_content(metadata_mode=MetadataMode.LLM).strip() for each in nodes]
    assert all(any(text in (message.content or "") for message in call.messages) for text in texts)
    bare: list[ChatMessage] = []
    for message in call.messages:
        said = message.content or ""
        for text in texts:
            said = said.replace(text, "")
        bare.append(ChatMessage(role=message.role, content=said))
    without = llm.chat(bare, max_tokens=1).additional_kwargs["prompt_tokens"]
    assert call.usage["reused_tokens"] >= call.reused
    return call.reused / (call.usage["prompt_tokens"] - without)


@pytest.fixture(scope="module")
def options(service: Running) -> dict[str, str]:
    return {"base_url": service.base_url, "api_key": service.key}


@pytest.fixture(scope="module")
def own_retriever(client: Client, options: dict[str, str], _numbers: Iterator[int]) -> BaseRetriever:
    """kvweave's, on letters that it cut itself, with metadata."""
    name = f"chains-{next(_numbers)}"
    documents = [{"id": f"{name}/{id_}", "text": text, "metadata": {"file": id_}} for id_, text in LETTERS.items()]
    client.wait(client.put_documents(documents, collection=name).job_id, timeout_s=120)  # pyright: ignore[reportArgumentType] (as it should be)
    return kvweave_retrievers.KVWeaveRetriever(name, 4, **options)


@pytest.fixture(scope="module")
def foreign_retriever(options: dict[str, str], _numbers: Iterator[int]) -> BaseRetriever:
    """LlamaIndex's own in-memory store, filled by a pipeline; kvweave sees the nodes go by and is not searched."""
    name = f"foreign-{next(_numbers)}"
    sink = kvweave_retrievers.KVWeaveSink(collection=name, strict=True, **options)
    documents = [
        Document(id_=f"{name}/{id_}", text=text, metadata={"file": f"{id_}.md", "pages": 3, "path": f"/in/{id_}"})
        for id_, text in LETTERS.items()
    ]
    for document in documents:
        document.excluded_llm_metadata_keys = ["path"]
    store, embedding = SimpleVectorStore(), HashedWords()
    pipeline = IngestionPipeline(
        transformations=[SentenceSplitter(chunk_size=80, chunk_overlap=10), embedding, sink],
        vector_store=store,
        docstore=SimpleDocumentStore(),
    )
    nodes = pipeline.run(documents=documents)
    assert len(nodes) > len(documents)
    sink.flush(120)
    index = VectorStoreIndex([], embed_model=embedding)
    index.insert_nodes([*nodes])
    return index.as_retriever(similarity_top_k=4)


# SIMPLE_SUMMARIZE is for texts without line breaks, as it writes \\n for each: those of kvweave's retriever here.
MODES = [
    ResponseMode.COMPACT,
    ResponseMode.REFINE,
    ResponseMode.TREE_SUMMARIZE,
    ResponseMode.ACCUMULATE,
    ResponseMode.COMPACT_ACCUMULATE,
]


@pytest.mark.parametrize(
    ("which", "mode"),
    [
        *(("own_retriever", mode) for mode in [*MODES, ResponseMode.SIMPLE_SUMMARIZE]),
        *(("foreign_retriever", mode) for mode in MODES),
    ],
)
def test_llama_indexs_own_prompts_reuse_what_stands_in_them(
    request: pytest.FixtureRequest, models: Models, heard: Ear, *, which: str, mode: ResponseMode
) -> None:
    retriever: BaseRetriever = request.getfixturevalue(which)
    llm = models(blend=REUSE)
    engine = RetrieverQueryEngine.from_args(retriever, llm=llm, response_mode=mode)
    nodes = engine.query(QUESTION).source_nodes
    calls = [*heard.calls]
    assert sum(len(call.sources) for call in calls) == len(nodes) == 4
    assert not any(source == "computed" for call in calls for source in call.sources)
    for call in calls:
        inside = [each for each in nodes if any(each.text.strip() in (said.content or "") for said in call.messages)]
        assert share(llm, call, inside) >= 0.95


def memory() -> ChatMemoryBuffer:
    """One without a database, which LlamaIndex's newer one never closes."""
    return ChatMemoryBuffer.from_defaults(token_limit=3000)


SYSTEM = "You answer letters. Be brief."
ENGINES: dict[str, Callable[[BaseRetriever, KVWeave], BaseChatEngine]] = {
    "context": lambda retriever, llm: ContextChatEngine.from_defaults(
        retriever=retriever, llm=llm, memory=memory(), system_prompt=SYSTEM
    ),
    "condense plus context": lambda retriever, llm: CondensePlusContextChatEngine.from_defaults(
        retriever=retriever, llm=llm, memory=memory(), system_prompt=SYSTEM, skip_condense=True
    ),
}
HISTORY = [
    ChatMessage(role=MessageRole.USER, content="Where does Minis live?"),
    ChatMessage(role=MessageRole.ASSISTANT, content="In Oskton."),
    ChatMessage(role=MessageRole.USER, content="And who makes lamps?"),
    ChatMessage(role=MessageRole.ASSISTANT, content="All of them, for Norworks."),
]


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_context_in_the_system_message_with_history_behind_it_comes_from_the_cache(
    models: Models, foreign_retriever: BaseRetriever, heard: Ear, capsys: pytest.CaptureFixture[str], *, engine: str
) -> None:
    shares: dict[str, float] = {}
    for policy in ("reuse", "hybrid"):
        llm = models(blend={"policy": policy})
        chat = ENGINES[engine](foreign_retriever, llm)
        nodes = chat.chat(QUESTION, chat_history=[*HISTORY]).source_nodes
        call = heard.calls[-1]
        system, *others = call.messages
        assert system.role == MessageRole.SYSTEM and nodes[0].text in (system.content or "")
        assert [each.content for each in others] == [*(each.content for each in HISTORY), QUESTION]
        shares[policy] = share(llm, call, nodes)
    streamed = chat.stream_chat(QUESTION, chat_history=[*HISTORY])
    assert "".join(streamed.response_gen) == str(await chat.achat(QUESTION, chat_history=[*HISTORY]))
    with capsys.disabled():
        told = ", ".join(f"{value:.1%} with the policy {policy}" for policy, value in shares.items())
        sys.stdout.write(
            f"\nLlamaIndex, {engine} chat engine on a foreign store: {told} of the context's tokens reused\n"
        )
    assert shares["reuse"] >= 0.95 and shares["hybrid"] >= 0.8


def test_a_context_that_is_cut_for_a_small_window_reuses_the_chunks_that_are_whole(
    models: Models, foreign_retriever: BaseRetriever, heard: Ear
) -> None:
    llm = models(blend=REUSE)
    helper = PromptHelper(context_window=300, num_output=16)
    synthesizer = CompactAndRefine(llm=llm, prompt_helper=helper, response_padding_size=20)
    nodes = foreign_retriever.retrieve(QUESTION)
    synthesizer.synthesize(QUESTION, nodes)
    assert len(heard.calls) > 1
    for call in heard.calls:
        said = "\n".join(each.content or "" for each in call.messages)
        whole = [each for each in nodes if each.node.get_content(metadata_mode=MetadataMode.LLM).strip() in said]
        assert len(call.sources) >= len(whole) and "computed" not in call.sources
    assert sum(len(call.sources) for call in heard.calls) >= len(nodes) // 2


class Ask(Workflow):
    """Retrieves and answers, as users write it."""

    retriever: BaseRetriever
    llm: KVWeave

    @step
    async def answer(self, event: StartEvent) -> StopEvent:
        nodes = await self.retriever.aretrieve(event.question)
        said = await self.llm.achat([ChatMessage(content=f"Question: {event.question}")], nodes=nodes)
        return StopEvent(result=said)


async def test_a_workflow_uses_both(llm: KVWeave, own_retriever: BaseRetriever) -> None:
    flow = Ask(timeout=60)
    flow.retriever, flow.llm = own_retriever, llm
    said = await flow.run(question="Which animal does Halio keep?")
    assert said.message.content == "badger" and said.additional_kwargs["reused_tokens"] > 0


def test_the_model_reads_what_the_retriever_notes(own_retriever: BaseRetriever) -> None:
    assert all(own.asked([], {"nodes": [each]}).options.get("chunk_ids") for each in own_retriever.retrieve(QUESTION))


async def test_a_query_engine_answers_and_the_service_saves_tokens(
    client: Client, llm: KVWeave, own_retriever: BaseRetriever
) -> None:
    question, before = "Which animal does Halio keep?", client.stats().served
    engine = RetrieverQueryEngine(own_retriever, KVWeaveSynthesizer(llm))
    assert str(engine.query(question)) == str(await engine.aquery(question)) == "badger"
    after = client.stats().served
    assert before and after and after.tokens_saved - before.tokens_saved > 2 * 100
    assert after.requests - before.requests >= 2 and set(after.sources) - {"computed"}
