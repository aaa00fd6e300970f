"""What a catalog is: changes and views, each one transaction. Another database behind it passes the same tests.

A `CatalogView` sees one committed state, however long it is held; a `CatalogChange` is seen by everybody at its end, or
by nobody.
Documents have one id over all collections. A version is staged, and serves later or at once; of one id one serves.
Only what serves is found, listed and told of. The same text in two documents is one chunk, and goes with the last of
them. What was put in but is not cut yet waits as an upload. It is live until a state ends it, which nothing undoes; of
one document the upload that was accepted last counts, a file's documents from when the file was.
"""

from contextlib import AbstractContextManager
from typing import Protocol

from retriever.catalog.change import CatalogChange
from retriever.catalog.view import CatalogView


class Catalog(Protocol):
    """The catalog of one tenant. Safe for threads; other processes may have the same one open."""

    def view(self) -> AbstractContextManager[CatalogView]: ...
    def change(self) -> AbstractContextManager[CatalogChange]: ...

    def empty_log(self) -> bool:
        """Overwrite what was deleted wherever a copy of it may be; returns whether that could be done just now."""
        ...

    def rest(self) -> bool:
        """Let go of what is kept for the next one and was not used since the last call; returns whether that was any.

        Opening it again takes a millisecond or two.
        """
        ...

    def close(self) -> None: ...
