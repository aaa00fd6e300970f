"""Which prefixes stay in memory, and that they come back as they were."""

import torch

from blend.run.context import Context, LayerShape, Prefixes

SHAPES = (LayerShape(2, 4, 1, 6), None, LayerShape(1, 3, 1, 3))
ONE, TWO, THREE = (1, 2, 3), (4, 5, 6), (7, 8, 9)


def context() -> Context:
    made = Context(SHAPES, capacity=8, dtype=torch.float32, device=torch.device("cpu"))
    for layer in made.layers:
        made.keys(layer).normal_()
        made.values(layer).normal_()
    return made


def test_the_prefixes_used_last_stay_within_the_budget() -> None:
    first, prefixes = context(), Prefixes(2 * 3 * (8 + 6 + 3 + 3) * 4)
    for prefix in (ONE, TWO):
        first.states.mark = len(prefix)
        prefixes.keep(prefix, first)
    prefixes.restore(ONE, context())
    first.states.mark = len(THREE)
    prefixes.keep(THREE, first)
    first.states.mark = 7
    prefixes.keep((1, 2, 3, 4, 5, 6, 7), first)  # more than the budget by itself: costs the others nothing

    known = {}
    for prefix in (ONE, TWO, THREE, (1, 2, 3, 4, 5, 6, 7)):
        found = context()
        prefixes.restore(prefix, found)
        known[prefix] = found.exact
        for layer in found.layers if found.exact else ():
            assert torch.equal(found.keys(layer)[:, :3], first.keys(layer)[:, :3])
            assert torch.equal(found.values(layer)[:, :3], first.values(layer)[:, :3])

    assert list(known.values()) == [3, 0, 3, 0]
