"""What a search by words, by vectors behind a filter, or for known texts needs to read. Changes nothing."""

from typing import Protocol

from retriever.catalog.base import Marked, Rows, Worded
from retriever.filters import EVERYTHING, Condition


class SearchView(Protocol):
    """What fits a query or a filter, in one committed state."""

    def lexical(self, query: str, allowed: Condition, *, limit: int, within: Condition = EVERYTHING) -> list[Worded]:
        """The passages that fit best by BM25, best first, each chunk once.

        How rare a word is, and how long a passage, is counted `within`: no score tells of what else there is.
        """
        ...

    def chunks_of(self, allowed: Condition) -> Rows:
        """The chunks of the passages that fit, ascending."""
        ...

    def oldest_of(self, allowed: Condition) -> Rows:
        """The rows (passage, chunk) for the chunks of what fits, in the order of their oldest passages that fit.

        Numbers of chunks tell whether a text was there before, perhaps in what does not fit; this order does not.
        """
        ...

    def marked_after(self, chunk: int) -> Marked: ...
