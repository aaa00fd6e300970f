"""The demo corpus through LangChain: its questions are answered right, and the service counts what was saved."""

from pathlib import Path
from typing import Any

import pytest
from langchain_core.embeddings import Embeddings
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore

from clients.tests.readme import Service
from kvweave_client import Client
from langchain_kvweave import ChatKVWeave, KVWeaveRetriever, KVWeaveSink, documents_chain, mirrored, retrieval_chain

SERVICE = Path(__file__).resolve().parents[4] / "service"
QUESTIONS = {
    "Which animal does Halio keep?": "badger",
    "Where does Halio live?": "Belford",
    "Who leads Selark?": "Rosen",
}
PROMPT = ChatPromptTemplate.from_template("{context}\n\nQuestion: {input}")
BARE = ChatPromptTemplate.from_template("Question: {input}")


@pytest.fixture(scope="module")
def service(own_service: Service) -> Service:
    """A service of this file's own: other documents would weigh in the ranks of words."""
    return own_service


def saved(client: Client) -> int:
    served = client.stats().served
    assert served is not None
    return served.tokens_saved


@pytest.fixture
def files() -> list[Path]:
    if not SERVICE.is_dir():
        pytest.skip("the demo corpus is not here")
    found = sorted((SERVICE / "lab" / "demo" / "corpus").glob("*.md"))
    assert found
    return found


def asked(retriever: BaseRetriever, model: ChatKVWeave) -> list[dict[str, str]]:
    """By the ordinary chain, and by those of this package with the documents' text and their ids."""
    ordinary = {"context": retriever | _texts, "input": RunnablePassthrough()} | PROMPT | model | StrOutputParser()
    by_text = retrieval_chain(retriever, documents_chain(model, PROMPT))
    by_id = retrieval_chain(retriever, documents_chain(model, BARE))
    return [
        {question: ordinary.invoke(question) for question in QUESTIONS},
        {question: by_text.invoke({"input": question})["answer"] for question in QUESTIONS},
        {question: by_id.invoke({"input": question})["answer"] for question in QUESTIONS},
    ]


def _texts(documents: list[Any]) -> str:
    return "\n\n".join(document.page_content for document in documents)


def test_the_demos_questions_are_answered_with_kv_reused(
    client: Client, retriever: KVWeaveRetriever, model: ChatKVWeave, files: list[Path]
) -> None:
    client.wait(client.upload_files(files, collection=str(retriever.collection)).job_id)
    before = saved(client)
    answers = asked(retriever.model_copy(update={"k": 5}), model)
    assert answers == [QUESTIONS] * 3
    assert saved(client) - before > 9 * 100


def test_beside_a_foreign_index_the_demo_saves_as_well(
    client: Client, sink: KVWeaveSink, model: ChatKVWeave, files: list[Path], words: Embeddings
) -> None:
    """What takes two letters is not asked: the toy embedding, which knows no rare words, does not bring both."""
    store = mirrored(InMemoryVectorStore(words), sink)
    store.add_texts([file.read_text() for file in files], [{"source": file.name} for file in files])
    before = saved(client)
    answers = asked(store.as_retriever(search_kwargs={"k": 5}), model)
    assert [each["Which animal does Halio keep?"] for each in answers] == ["badger"] * 3
    assert saved(client) - before > 9 * 100
