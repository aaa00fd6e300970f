"""Cuts texts into parts for retrieval. Knows no files, no catalog and no model: the token counter is handed in."""

from retriever.chunking.count import Counter, count_words
from retriever.chunking.cut import CutRules, cut

__all__ = ["Counter", "CutRules", "count_words", "cut"]
