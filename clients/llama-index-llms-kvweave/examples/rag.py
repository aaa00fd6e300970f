"""RAG over kvweave with LlamaIndex, cell by cell: run it whole, or open it in an editor that knows `# %%` cells.

    python examples/rag.py --url http://localhost:8000 --key kvw_…

Without arguments it reads KVWEAVE_BASE_URL and KVWEAVE_API_KEY. It needs llama-index-retrievers-kvweave too. It makes
collections of its own and deletes them.
"""

# %% Where the service is. In a notebook, write the two down here instead.
import argparse
import uuid

from llama_index.core import Document, StorageContext, VectorStoreIndex
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.base.response.schema import RESPONSE_TYPE
from llama_index.core.chat_engine.types import ChatMode
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.prompts import PromptTemplate
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.vector_stores import SimpleVectorStore

from llama_index.llms.kvweave import KVWeave, KVWeaveSynthesizer
from llama_index.retrievers.kvweave import KVWeaveRetriever, KVWeaveSink

parser = argparse.ArgumentParser(description="RAG over kvweave with LlamaIndex, with the tokens reused printed.")
parser.add_argument("--url", default="", help="the service; else KVWEAVE_BASE_URL")
parser.add_argument("--key", default="", help="its API key; else KVWEAVE_API_KEY")
given = parser.parse_args()

llm = KVWeave(base_url=given.url, api_key=given.key, temperature=0, max_tokens=32)
client = llm.client  # kvweave_client.Client, for what LlamaIndex has no word for

LETTERS = {
    "Register 12": "Mirus lives in Ulmton. The ink is easy to read. Code K7 stands for Halio. Garus leads Dalora.",
    "Letter 40": "Dorina keeps a pony. Nobody asked for details. K7 lives in Belford. The leader of Halida is Vero.",
    "Report 17": "A pony is kept by Sela. Halio keeps a badger. The list was checked twice before it was filed.",
    "Journal 51": "Some of the older notes were lost in a move. Code B4 stands for Selark. Mirus leads Zanark.",
    "Ledger 33": "The leader of Istida is Bria. Rosen leads B4. Both sides agreed on the wording. Dorina leads Yareon.",
}
QUESTIONS = ("Which animal does Halio keep?", "Where does Halio live?", "Who leads Selark?")


def reused(response: RESPONSE_TYPE) -> str:
    """The reused tokens as the synthesizer tells them."""
    usage = (response.metadata or {})["kvweave"]["usage"]
    return f"{usage['reused_tokens']:>4} of {usage['prompt_tokens']:>4} tokens reused"


def saved() -> int:
    """The tokens that the service did not have to compute, until now."""
    served = client.stats().served
    return served.tokens_saved if served else 0


# %% kvweave is the index: it cuts, searches, and computes the caches once, when documents come in.
collection = f"example-{uuid.uuid4()}"
job = client.put_documents(
    [{"id": f"{collection}/{title}", "title": title, "text": text} for title, text in LETTERS.items()],
    collection=collection,
)
client.wait(job.job_id)
retriever = KVWeaveRetriever(collection, similarity_top_k=5, base_url=given.url, api_key=given.key or None)
for found in retriever.retrieve(QUESTIONS[0]):
    print(f"found {found.node.metadata['kvweave_title']!r}, its cache is {found.node.metadata['kvweave_cache']}")

# %% A query engine that hands the nodes over by their chunk ids. The response tells what it cost.
engine = RetrieverQueryEngine(retriever, KVWeaveSynthesizer(llm))
for question in QUESTIONS:
    response = engine.query(question)
    print(f"by chunk id    {reused(response)}  {question} {response}")

# %% The same, streamed.
streamed = RetrieverQueryEngine(retriever, KVWeaveSynthesizer(llm, streaming=True)).query(QUESTIONS[0])
print(f"streamed       {streamed}")

# %% LlamaIndex's own query engine, with the text in a prompt. kvweave recognises the passages in it.
template = PromptTemplate("{context_str}\n\nQuestion: {query_str}")
ordinary = RetrieverQueryEngine.from_args(retriever, llm=llm, text_qa_template=template)
for question in QUESTIONS[:2]:
    before = saved()
    response = ordinary.query(question)
    print(f"in a prompt    {saved() - before:>4} tokens reused  {question} {response}")


# %% Beside a vector store of yours. It stays the index; what is added to it or deleted from it, kvweave follows.
sink = KVWeaveSink(collection=f"{collection}-beside", base_url=given.url, api_key=given.key)
index = VectorStoreIndex.from_documents(
    [Document(id_=title, text=text, metadata={"title": title}) for title, text in LETTERS.items()],
    transformations=[SentenceSplitter(id_func=lambda number, document: f"{document.id_}/{number}")],  # stable ids
    storage_context=StorageContext.from_defaults(vector_store=sink.beside(SimpleVectorStore())),
    embed_model=MockEmbedding(embed_dim=64),  # take a real embedding here
)
sink.flush()  # caches are computed in the background; from here on all are there

# %% Nodes of that index are handed over as documents. kvweave recognises what it knows in them.
beside = RetrieverQueryEngine(index.as_retriever(similarity_top_k=5), KVWeaveSynthesizer(llm))
for question in QUESTIONS:
    response = beside.query(question)
    print(f"foreign index  {reused(response)}  {question} {response}")

# %% A chat over it: its context stands in the system message, with the history behind it.
chat = index.as_chat_engine(
    chat_mode=ChatMode.CONTEXT,
    llm=llm,
    similarity_top_k=5,
    memory=ChatMemoryBuffer.from_defaults(token_limit=2000),
    system_prompt="Answer from these letters.",
)
for question in QUESTIONS:
    before = saved()
    answer = chat.chat(f"Question: {question}")
    print(f"chat           {saved() - before:>4} tokens reused  {question} {answer}")

# %% What is asked without passages reuses next to nothing.
plain = llm.chat([ChatMessage(content=f"Question: {QUESTIONS[0]}")])
print(f"no passages    {plain.additional_kwargs['reused_tokens']:>4} tokens reused")

# %% Away with it.
for name in (collection, sink.collection):
    client.delete_collection(name)
