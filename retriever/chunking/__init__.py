"""Cuts texts into parts for retrieval. Knows no files, no catalog and no model: who counts tokens is handed in."""

from retriever.chunking.count import Counter, count_words
from retriever.chunking.cut import Rules, cut

__all__ = ["Counter", "Rules", "count_words", "cut"]
