"""Which cached tokens are recomputed. A policy is a function of the layout; to add one, write it and list it below.

The budget is `ceil(ratio * blended tokens)`. Tokens that stand where they were captured are exact and never chosen.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from blend.errors import PromptError
from blend.prompt import Layout, Span

HEAD = 32  # beyond these first tokens of a chunk, deviation chooses better
DEEP = 12  # layers that keep keys, from which on narrowing in steps pays
NARROWING = ((1, 1.3), (2, 1.15), (4, None))  # (n-th keeping layer, share of the budget); None: what the mean leaves


@dataclass(frozen=True, slots=True)
class Filter:
    """At this layer the tokens that deviate most stay, so many of them."""

    layer: int
    keep: int


@dataclass(frozen=True, slots=True)
class Selection:
    """`layout` has the records in use, `forced` slots are computed in any case, `filters` choose further ones."""

    layout: Layout
    forced: tuple[int, ...] = ()
    filters: tuple[Filter, ...] = ()


@dataclass(frozen=True, slots=True)
class Budget:
    """Tokens to recompute, and the layers that keep keys of their own."""

    tokens: int
    keeping: Sequence[int]


Policy = Callable[[Layout, Budget], Selection]


def _full(layout: Layout, budget: Budget) -> Selection:
    return Selection(layout.only(()))


def _prefix(layout: Layout, budget: Budget) -> Selection:
    return Selection(layout.only([span for span in layout.spans if span.exact]))


def _reuse(layout: Layout, budget: Budget) -> Selection:
    return Selection(layout)


def _heads(layout: Layout, budget: Budget) -> Selection:
    return Selection(layout, _first_tokens(layout.blended, budget.tokens))


def _deviation(layout: Layout, budget: Budget) -> Selection:
    return Selection(layout, (), _narrowing(budget.tokens, budget.keeping))


def _hybrid(layout: Layout, budget: Budget) -> Selection:
    spans = layout.blended
    heads = _first_tokens(spans, min(budget.tokens // 2, HEAD * len(spans)))
    return Selection(layout, heads, _narrowing(budget.tokens - len(heads), budget.keeping))


POLICIES: dict[str, Policy] = {
    "full": _full,
    "prefix": _prefix,
    "reuse": _reuse,
    "heads": _heads,
    "deviation": _deviation,
    "hybrid": _hybrid,
}


def select(layout: Layout, *, policy: str, ratio: float, keeping: Sequence[int]) -> Selection:
    """What to reuse and what to recompute. `keeping`: the layers with keys of their own."""
    if policy not in POLICIES:
        raise PromptError(f"unknown policy {policy!r}: choose one of {', '.join(POLICIES)}")
    if not 0 <= ratio <= 1:
        raise PromptError(f"ratio must be in [0, 1], got {ratio!r}")
    blended = sum(span.stop - span.start for span in layout.blended)
    budget = Budget(math.ceil(ratio * blended), keeping)
    if policy in ("heads", "deviation", "hybrid") and budget.tokens == blended:
        return _prefix(layout, budget)  # all of them: nothing blended is left
    if len(keeping) == 1:
        budget = Budget(0, keeping)  # its keys depend on the token alone, so cached ones are exact
    return POLICIES[policy](layout, budget)


def _first_tokens(spans: Sequence[Span], budget: int) -> tuple[int, ...]:
    """The same number of each chunk's first tokens, as many as the budget allows, the rest from the first chunks."""
    if not spans:
        return ()
    lengths = [span.stop - span.start for span in spans]
    head = max(each for each in range(max(lengths) + 1) if sum(min(each, length) for length in lengths) <= budget)
    left = budget - sum(min(head, length) for length in lengths)
    slots: list[int] = []
    for span, length in zip(spans, lengths, strict=True):
        extra = int(left > 0 and length > head)
        left -= extra
        slots += range(span.start, span.start + min(head, length) + extra)
    return tuple(slots)


def _narrowing(budget: int, keeping: Sequence[int]) -> tuple[Filter, ...]:
    """Keep more at first, as early deviation is a rough guess, and fewer later: on average the budget."""
    if budget == 0:
        return ()
    if len(keeping) < DEEP:
        return (Filter(keeping[1], budget),)
    filters: list[Filter] = []
    spent, last = 0.0, len(keeping)
    for index, (layer, share) in enumerate(NARROWING):
        following = NARROWING[index + 1][0] if index + 1 < len(NARROWING) else last
        mean = share if share is not None else ((last - NARROWING[0][0]) - spent) / (last - layer)
        spent += mean * (following - layer)
        filters.append(Filter(keeping[layer], round(budget * mean)))
    return tuple(filters)
