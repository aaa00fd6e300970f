"""Contexts side by side in large buffers, so that one call writes, and another reads, the rows of several requests."""

from collections import deque
from collections.abc import Callable
from itertools import count
from weakref import WeakSet, finalize

import torch

from blend.run.context import Context

BESIDE = 8  # contexts of the first one's size that a slab has room for
LEAST = 1024  # tokens of a context, to reckon with


class Slab:
    """One context's buffers, parts of which are contexts of their own."""

    numbers = count(1)

    def __init__(self, whole: Context) -> None:
        self.number = next(self.numbers)
        self.whole = whole
        self._free = [(0, whole.capacity)]  # from where to where, in order; none touches another
        self._given_back = deque[tuple[int, int]]()  # by contexts that ended, in any thread and inside any call

    def take(self, tokens: int) -> int | None:
        """Where so many tokens adjoin that are free, which they are no more; None where there are none."""
        while self._given_back:
            self._join(self._given_back.popleft())
        for place, (start, stop) in enumerate(self._free):
            if stop - start >= tokens:
                self._free[place : place + 1] = [(start + tokens, stop)] if stop - start > tokens else []
                return start
        return None

    def give_back(self, start: int, tokens: int) -> None:
        """Free them again."""
        self._given_back.append((start, start + tokens))

    def _join(self, span: tuple[int, int]) -> None:
        spans = sorted([*self._free, span])
        self._free = spans[:1]
        for first, stop in spans[1:]:
            if first == self._free[-1][1]:
                self._free[-1] = (self._free[-1][0], stop)
            else:
                self._free.append((first, stop))


class SlabContext(Context):
    """A context whose buffers are a slab's, from its slot `start` on; free again when nobody knows it any more."""

    def __init__(self, slab: Slab, start: int, *, capacity: int) -> None:
        whole = slab.whole
        shapes, some = whole.shapes, whole.keys(whole.layers[0])
        super().__init__(shapes, capacity=0, dtype=some.dtype, device=some.device)
        self.capacity = capacity
        self.slab = slab
        self.place = (slab.number, start)
        mine = slice(start, start + capacity)
        self._keys = [shape and whole.keys(layer)[:, mine] for layer, shape in enumerate(shapes)]
        self._values = [shape and whole.values(layer)[:, mine] for layer, shape in enumerate(shapes)]
        finalize(self, slab.give_back, start, capacity)


class Slabs:
    """Gives contexts to one thread, in slabs of which each is there while one of its contexts is."""

    def __init__(self, fresh: Callable[[int], Context], *, most: int) -> None:
        """`fresh` makes a context for so many tokens; `most` are those of all contexts that are there at a time."""
        self._fresh = fresh
        self._most = most
        self._slabs: WeakSet[Slab] = WeakSet()

    def context(self, capacity: int) -> SlabContext:
        """A context with room for that many tokens."""
        for slab in sorted(self._slabs, key=lambda each: each.number):
            start = slab.take(capacity)
            if start is not None:
                return SlabContext(slab, start, capacity=capacity)
        slab = Slab(self._room(capacity))
        self._slabs.add(slab)
        start = slab.take(capacity)
        assert start is not None
        return SlabContext(slab, start, capacity=capacity)

    def _room(self, capacity: int) -> Context:
        """The buffers of a slab whose first context has that many tokens."""
        try:
            return self._fresh(max(capacity, min(BESIDE * max(capacity, LEAST), self._most // 4)))
        except torch.OutOfMemoryError:
            return self._fresh(capacity)
