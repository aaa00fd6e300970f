"""Chains as people write them: the KV of what they read is reused without anything but the choice of classes."""

import sys
from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore

from kvweave_client import Client
from kvweave_client.options import NewDocument
from langchain_kvweave import (
    ChatKVWeave,
    KVWeaveRetriever,
    KVWeaveSink,
    documents_chain,
    mirrored,
    retrieval_chain,
)

QUESTION = "Which animal does Halio keep?"
QUESTIONS = {
    QUESTION: "badger",
    "Where does Halio live?": "Belford",
    "Who founded Norworks?": "Corina",
    "Who leads Selark?": "Rosen",
}
PROMPT = ChatPromptTemplate.from_template("{context}\n\nQuestion: {question}")
BARE = ChatPromptTemplate.from_template("Question: {input}")


def format_docs(documents: Sequence[Document]) -> str:
    return "\n\n".join(document.page_content for document in documents)


@pytest.fixture
def filled(client: Client, retriever: KVWeaveRetriever, passages: list[str]) -> KVWeaveRetriever:
    documents = [NewDocument(id=f"{retriever.collection}/{number}", text=text) for number, text in enumerate(passages)]
    client.wait(client.put_documents(documents, collection=str(retriever.collection)).job_id)
    return retriever


def saved(client: Client) -> int:
    served = client.stats().served
    assert served is not None
    return served.tokens_saved


async def test_the_ordinary_chain_reuses_kv(client: Client, filled: KVWeaveRetriever, model: ChatKVWeave) -> None:
    chain = {"context": filled | format_docs, "question": RunnablePassthrough()} | PROMPT | model | StrOutputParser()
    before = saved(client)
    assert chain.invoke(QUESTION) == "badger"
    assert await chain.ainvoke(QUESTION) == "badger"
    assert "".join(chain.stream(QUESTION)) == "badger"
    assert saved(client) - before > 3 * 15


@pytest.mark.parametrize("prompt", [BARE, ChatPromptTemplate.from_template("{context}\n\nQuestion: {input}")])
async def test_a_documents_chain_hands_over_what_the_prompt_has_no_place_for(
    prompt: ChatPromptTemplate, client: Client, filled: KVWeaveRetriever, model: ChatKVWeave
) -> None:
    chain = retrieval_chain(filled, documents_chain(model, prompt))
    before = saved(client)
    told = chain.invoke({"input": QUESTION})
    assert told["answer"] == "badger" and told["input"] == QUESTION
    assert [each.page_content for each in told["context"]] == [each.page_content for each in filled.invoke(QUESTION)]
    assert (await chain.ainvoke({"input": QUESTION}))["answer"] == "badger"
    parts = [part["answer"] for part in chain.stream({"input": QUESTION}) if "answer" in part]
    assert "".join(map(str, parts)) == "badger"
    aparts = [part["answer"] async for part in chain.astream({"input": QUESTION}) if "answer" in part]
    assert aparts == parts
    assert saved(client) - before > 4 * 15


def test_a_documents_chain_takes_any_parser_and_name(filled: KVWeaveRetriever, model: ChatKVWeave) -> None:
    class Shouting(StrOutputParser):
        def parse(self, text: str) -> str:
            return text.upper()

    chain = documents_chain(model, BARE, output_parser=Shouting(), documents="pages")
    assert chain.invoke({"input": QUESTION, "pages": filled.invoke(QUESTION)}) == "BADGER"


async def test_a_foreign_store_with_context_in_the_system_message_and_history_behind_it_reuses_95_percent(
    sink: KVWeaveSink,
    access: dict[str, Any],
    words: Embeddings,
    passages: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A share of the context's tokens: those of chunks that came out of the cache, of those that the prompt is longer
    by than the same prompt with an empty context."""
    store = mirrored(InMemoryVectorStore(words), sink)
    others = [f"Parcel {number} belongs to nobody. It was weighed twice and sent back." for number in range(20)]
    store.add_texts([*passages, *others])
    prompt = ChatPromptTemplate.from_messages(
        [
            ("system", "Answer the question from the documents.\n\n{context}"),
            MessagesPlaceholder("history"),
            ("human", "Question: {question}"),
        ]
    )
    shares: dict[str, list[float]] = {"reuse": [], "hybrid": []}
    counted: dict[str, int] = {}
    for policy, found in shares.items():
        model = ChatKVWeave(temperature=0, max_tokens=30, blend={"policy": policy}, **access)
        history: list[BaseMessage] = []
        for question in QUESTIONS:
            documents = store.as_retriever(search_kwargs={"k": 4}).invoke(question)
            asked = {"history": history, "question": question}
            answer = (prompt | model).invoke({"context": format_docs(documents), **asked})
            without = (prompt | model).invoke({"context": "", **asked})
            found.append(_cached(answer) / (_tokens(answer) - _tokens(without)))
            for name, count in _counts(answer, without).items():
                counted[f"{policy} {name}"] = counted.get(f"{policy} {name}", 0) + count
            history += [HumanMessage(f"Question: {question}"), answer]
    with capsys.disabled():
        told = {policy: " ".join(f"{share:.1%}" for share in found) for policy, found in shares.items()}
        sys.stdout.write(f"\ncontext tokens from the cache, by turn: {told}; tokens of all turns: {counted}\n")
    assert min(shares["reuse"]) >= 0.95 and min(shares["hybrid"]) >= 0.95


def _counts(answer: AIMessage, without: AIMessage) -> dict[str, int]:
    usage = answer.usage_metadata or {}
    return {
        "context": _tokens(answer) - _tokens(without),
        "cached": _cached(answer),
        "reused": usage.get("input_token_details", {}).get("cache_read", 0),
        "recomputed": answer.response_metadata["kvweave"]["recomputed_tokens"],
    }


def _tokens(message: AIMessage) -> int:
    assert message.usage_metadata is not None
    return message.usage_metadata["input_tokens"]


def _cached(message: AIMessage) -> int:
    chunks = message.response_metadata["kvweave"]["chunks"]
    return sum(chunk["tokens"] for chunk in chunks if chunk["source"] != "computed")
