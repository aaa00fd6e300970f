"""LangChain over kvweave, a RAG chunk-cache service: a chat model, a retriever, and a sink beside any vector store."""

from langchain_kvweave.chains import documents_chain, retrieval_chain
from langchain_kvweave.chat_models import ChatKVWeave
from langchain_kvweave.filters import KVWeaveTranslator
from langchain_kvweave.indexing import KVWeaveSink
from langchain_kvweave.retrievers import KVWeaveRetriever
from langchain_kvweave.vectorstores import MirroredStore, mirrored

__all__ = [
    "ChatKVWeave",
    "KVWeaveRetriever",
    "KVWeaveSink",
    "KVWeaveTranslator",
    "MirroredStore",
    "documents_chain",
    "mirrored",
    "retrieval_chain",
]
