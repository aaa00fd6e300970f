"""LlamaIndex on kvweave: its model, and a response synthesizer that hands nodes over instead of their text."""

from llama_index.llms.kvweave.base import KVWeave
from llama_index.llms.kvweave.errors import Unanswered
from llama_index.llms.kvweave.synthesizer import KVWeaveSynthesizer

__all__ = ["KVWeave", "KVWeaveSynthesizer", "Unanswered"]
