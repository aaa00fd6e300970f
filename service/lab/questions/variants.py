"""Prompts that are as good as a case's own: full prefill's difference between them is the yardstick. Knows no model."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from random import Random

from service.lab.questions.cases import Case
from service.model.prompt_builder import PromptPassage

DRAWS = 3
_TRIES = 16  # shuffles for each draw, until one is new


@dataclass(frozen=True, slots=True)
class Variants:
    """What is changed. `swap` is another case's passage, which takes the place of one that the answer does not rest on.

    A case decides its own variants, whatever is asked beside it.
    """

    draws: int = DRAWS
    swap: PromptPassage | None = None

    def reordered(self, case: Case) -> list[Case]:
        """The case with the documents that its answer does not rest on in other orders, as often as there are others.

        Where none is known not to matter, all documents change places, and of one alone its passages.
        """
        orders = map(case.arranged, _orders(case, Random(f"reordered {case!r}")))
        found: dict[tuple[PromptPassage, ...], Case] = {case.passages: case}
        for _, each in zip(range(self.draws * _TRIES), orders, strict=False):
            found.setdefault(each.passages, each)
            if len(found) > self.draws:
                break
        return list(found.values())[1:]

    def replaced(self, case: Case) -> Case | None:
        """The case with another passage instead of one that its answer does not rest on, if one is known."""
        at = _spare(case)
        if at is None or self.swap is None:
            return None
        return replace(case, passages=(*case.passages[:at], self.swap, *case.passages[at + 1 :]))

    def left_out(self, case: Case) -> Case | None:
        """The case without a passage that its answer does not rest on, if one is known."""
        at = _spare(case)
        return None if at is None else case.arranged([n for n in range(len(case.passages)) if n != at])


def _orders(case: Case, random: Random) -> Iterator[list[int]]:
    """Yields orders of the passages without end. Those of one document stay together, where there are others."""
    documents = _documents(case.passages)
    if len(documents) == 1 and not case.foreign:
        documents = [[number] for number in documents[0]]
    moving = [each for each in documents if not case.foreign or set(each) <= set(case.foreign)]
    while True:
        if len(moving) == 1:
            order = [each for each in documents if each not in moving]
            order.insert(random.randint(0, len(order)), moving[0])
        else:
            drawn = iter(random.sample(moving, len(moving)))
            order = [next(drawn) if each in moving else each for each in documents]
        yield [*chain.from_iterable(order)]


def _documents(passages: Sequence[PromptPassage]) -> list[list[int]]:
    """The numbers of passages that stand together and have one title; one without a title is alone."""
    groups = groupby(range(len(passages)), lambda number: passages[number].title or number)
    return [[*group] for _, group in groups]


def _spare(case: Case) -> int | None:
    return Random(f"spare {case!r}").choice(case.foreign) if case.foreign else None
