"""Exact keys and values of prompt prefixes, kept in memory. What was blended never comes in here."""

from collections import OrderedDict

from torch import Tensor

from blend.context import Context


class Prefixes:
    """The prefixes used last, within a number of bytes. Used by one thread."""

    def __init__(self, bytes_at_most: int) -> None:
        self._room = bytes_at_most
        self._kept: OrderedDict[tuple[int, ...], list[tuple[int, Tensor, Tensor]]] = OrderedDict()

    def restore(self, prefix: tuple[int, ...], context: Context) -> None:
        """Copy the prefix into the context's first slots, if it is kept."""
        rows = self._kept.get(prefix)
        if rows is None:
            return
        self._kept.move_to_end(prefix)
        for layer, keys, values in rows:
            context.keys(layer)[:, : len(prefix)] = keys
            context.values(layer)[:, : len(prefix)] = values
        context.exact = len(prefix)

    def keep(self, prefix: tuple[int, ...], context: Context) -> None:
        """Remember what the context holds for it, computed in place."""
        if prefix in self._kept:
            return
        rows = [
            (layer, context.keys(layer)[:, : len(prefix)].clone(), context.values(layer)[:, : len(prefix)].clone())
            for layer in context.layers
        ]
        if not prefix or _size(rows) > self._room:
            return
        self._kept[prefix] = rows
        while sum(_size(each) for each in self._kept.values()) > self._room:
            self._kept.popitem(last=False)


def _size(rows: list[tuple[int, Tensor, Tensor]]) -> int:
    return sum(keys.nbytes + values.nbytes for _, keys, values in rows)
