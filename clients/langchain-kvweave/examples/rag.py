"""A RAG chain over kvweave, cell by cell: run it whole, or open it as a notebook in an editor that knows `# %%` cells.

    python examples/rag.py --url http://localhost:8000 --key kvw_…

Without arguments it reads KVWEAVE_BASE_URL and KVWEAVE_API_KEY. It makes collections of its own and deletes them.
"""

# %% Where the service is. In a notebook, write the two down here instead.
import argparse
import uuid
from collections.abc import Sequence

from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore

from langchain_kvweave import (
    ChatKVWeave,
    KVWeaveRetriever,
    KVWeaveSink,
    documents_chain,
    mirrored,
    retrieval_chain,
)

parser = argparse.ArgumentParser(description="A RAG chain over kvweave, with the tokens reused printed.")
parser.add_argument("--url", help="the service; else KVWEAVE_BASE_URL")
parser.add_argument("--key", help="its API key; else KVWEAVE_API_KEY")
given = parser.parse_args()
access = {name: value for name, value in (("base_url", given.url), ("api_key", given.key)) if value}

llm = ChatKVWeave(temperature=0, max_tokens=64, **access)
client = llm.asked()  # kvweave_client.Client, for what LangChain has no word for

LETTERS = {
    "Register 12": "Mirus lives in Ulmton. The ink is easy to read. Code K7 stands for Halio. Garus leads Dalora.",
    "Letter 40": "Dorina keeps a pony. Nobody asked for details. K7 lives in Belford. The leader of Halida is Vero.",
    "Report 17": "A pony is kept by Sela. Halio keeps a badger. The list was checked twice before it was filed.",
    "Journal 51": "Some of the older notes were lost in a move. Code B4 stands for Selark. Mirus leads Zanark.",
    "Ledger 33": "The leader of Istida is Bria. Rosen leads B4. Both sides agreed on the wording. Dorina leads Yareon.",
}
QUESTIONS = ("Which animal does Halio keep?", "Where does Halio live?", "Who leads Selark?")


def reused(answer: AIMessage) -> str:
    """How many tokens of the prompt came out of the cache."""
    usage = answer.usage_metadata or {}
    cached = usage.get("input_token_details", {}).get("cache_read", 0)
    return f"{cached:>4} of {usage.get('input_tokens', 0):>4} tokens reused"


# %% kvweave is the index: it cuts, searches and computes the caches once, when documents come in.
collection = f"example-{uuid.uuid4()}"
job = client.put_documents(
    [{"id": f"{collection}/{title}", "title": title, "text": text} for title, text in LETTERS.items()],
    collection=collection,
)
client.wait(job.job_id)
retriever = KVWeaveRetriever(collection=collection, k=5, **access)
for document in retriever.invoke(QUESTIONS[0]):
    print(f"found {document.metadata['kvweave_title']!r}, its KV is {document.metadata['kvweave_cache']}")


# %% The ordinary chain. The service recognises the passages in the prompt, wherever the prompt puts them.
def format_docs(documents: Sequence[Document]) -> str:
    return "\n\n".join(document.page_content for document in documents)


prompt = ChatPromptTemplate.from_template("{context}\n\nQuestion: {question}")
chain = {"context": retriever | format_docs, "question": RunnablePassthrough()} | prompt | llm
for question in QUESTIONS[:2]:
    answer = chain.invoke(question)
    print(f"ordinary chain    {reused(answer)}  {question} {answer.text}")

# %% The same with the documents handed over by their chunk ids, streamed. The prompt says only what to do with them.
answering = retrieval_chain(retriever, documents_chain(llm, ChatPromptTemplate.from_template("Question: {input}")))
for part in answering.stream({"input": QUESTIONS[0]}):
    print(part.get("answer", ""), end="")
print(f"  (was streamed) {QUESTIONS[0]}")
documents = retriever.invoke(QUESTIONS[0])
answer = llm.invoke(f"Question: {QUESTIONS[0]}", documents=documents)
print(f"by chunk id       {reused(answer)}  {QUESTIONS[0]} {answer.text}")


# %% Beside a vector store of yours. It stays the index; what is written to it is written to kvweave, too.
sink = KVWeaveSink(collection=f"{collection}-sink", **access)
store = mirrored(InMemoryVectorStore(DeterministicFakeEmbedding(size=64)), sink)  # take a real embedding here
store.add_texts(list(LETTERS.values()), [{"title": title} for title in LETTERS])
sink.flush()  # caches are computed in the background; from here on all are there

# %% A chat over it, with the passages in the system message and the history behind them.
chat = ChatPromptTemplate.from_messages(
    [
        ("system", "Answer from these letters.\n\n{context}"),
        MessagesPlaceholder("history"),
        ("human", "Question: {question}"),
    ]
)
history: list[BaseMessage] = []
for question in QUESTIONS:
    found = store.as_retriever(search_kwargs={"k": 5}).invoke(question)
    answer = (chat | llm).invoke({"context": format_docs(found), "history": history, "question": question})
    print(f"foreign retriever {reused(answer)}  {question} {answer.text}")
    history += [HumanMessage(f"Question: {question}"), answer]

# %% What is asked without passages reuses nothing.
answer = llm.invoke(f"Question: {QUESTIONS[0]}")
print(f"without passages  {reused(answer)}")
print((prompt | llm | StrOutputParser()).invoke({"context": LETTERS["Report 17"], "question": QUESTIONS[0]}))

# %% Away with it.
for name in (collection, sink.collection):
    client.delete_collection(name)
