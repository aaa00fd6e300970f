"""How far a catalog has come, and what of removed chunks is still to be cleared away."""

from typing import Protocol

from retriever.types import CatalogState, Counts, Rows


class StateView(Protocol):
    """The state of a whole catalog, in one committed state."""

    def state(self) -> CatalogState: ...
    def counts(self) -> Counts: ...

    def removed_after(self, row: int) -> Rows:
        """The chunks that were removed since the state's `removed` was this."""
        ...

    def unswept(self, limit: int) -> list[tuple[int, str]]:
        """Removed chunks (row, id) whose caches are not known to be gone, oldest first, but for chunks that are again.

        The same id may come twice. Where there are none, all up to the state's `removed` may be called swept.
        """
        ...


class StateChange(Protocol):
    """The changes of a catalog's state, as part of one transaction."""

    def swept(self, row: int) -> None:
        """Note that the caches of all chunks removed up to this row are gone, but for chunks that are again."""
        ...

    def purge(self) -> None:
        """Make the index forget the words of what was deleted, which it does by itself only some day. Takes a while."""
        ...
