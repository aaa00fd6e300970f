"""LlamaIndex on kvweave: its retriever, and a sink that keeps it beside any other vector store."""

from llama_index.retrievers.kvweave.base import KVWeaveRetriever
from llama_index.retrievers.kvweave.books import Owed
from llama_index.retrievers.kvweave.sink import BesideKVWeave, KVWeaveSink

__all__ = ["BesideKVWeave", "KVWeaveRetriever", "KVWeaveSink", "Owed"]
