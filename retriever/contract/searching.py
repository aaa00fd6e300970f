"""What a search by words, by vectors behind a filter, or for known texts needs to read. Changes nothing."""

from typing import Protocol

from retriever.filter_condition import EVERYTHING, FilterCondition
from retriever.types import MarkedChunks, Rows, WordMatch


class SearchView(Protocol):
    """What fits a query or a filter, in one committed state."""

    def lexical(
        self, query: str, allowed: FilterCondition, *, limit: int, within: FilterCondition = EVERYTHING
    ) -> list[WordMatch]:
        """The passages that fit best by BM25, best first, each chunk once.

        How rare a word is, and how long a passage, is counted `within`: no score tells of what else there is.
        """
        ...

    def chunks_of(self, allowed: FilterCondition) -> Rows:
        """The chunks of the passages that fit, ascending."""
        ...

    def oldest_of(self, allowed: FilterCondition) -> Rows:
        """The rows (passage, chunk) for the chunks of what fits, in the order of their oldest passages that fit.

        Numbers of chunks tell whether a text was there before, perhaps in what does not fit; this order does not.
        """
        ...

    def marked_after(self, chunk: int) -> MarkedChunks: ...
