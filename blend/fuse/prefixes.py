"""Exact keys and values of prompt prefixes, kept in memory. Blended ones are never kept here."""

from collections import OrderedDict

from blend.run.context import Context


class Prefixes:
    """Keeps the most recently used prefixes, within a number of bytes. Used by one thread."""

    def __init__(self, bytes_at_most: int) -> None:
        self._room = bytes_at_most
        self._kept: OrderedDict[tuple[str, tuple[int, ...]], Context] = OrderedDict()

    def restore(self, prefix: tuple[int, ...], context: Context, *, owner: str = "") -> None:
        """Copy the prefix into the context's first slots, if it is kept for this owner."""
        kept = self._kept.get((owner, prefix))
        if kept is None:
            return
        self._kept.move_to_end((owner, prefix))
        context.copy_first(len(prefix), kept)
        context.exact = len(prefix)

    def keep(self, prefix: tuple[int, ...], context: Context, *, owner: str = "") -> None:
        """Keep the prefix as the context holds it, computed in place."""
        if not prefix or (owner, prefix) in self._kept or len(prefix) * context.token_bytes > self._room:
            return
        self._kept[owner, prefix] = context.first(len(prefix))
        while sum(each.capacity * each.token_bytes for each in self._kept.values()) > self._room:
            self._kept.popitem(last=False)
