"""What the passages of a suite are captured behind: other passages, and their own document. Knows no model."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from service.lab.questions.cases import Case
from service.model.capture_context import ALONE, FILLER_CHARACTERS, PASSAGES, CaptureContext, excerpt
from service.model.prompt_builder import PromptPassage

OF_EACH = 2  # passages of one case that may be filler: a few of many cases tell more of a suite
MOST = 64  # passages that filler is chosen from


def in_contexts(cases: Sequence[Case], pool: Iterable[PromptPassage] = ()) -> list[Case]:
    """The cases, with a context for each passage as a service would choose one.

    The filler is what the case says, else the same for all but those that hold a passage or a title of it. It comes out
    of the `pool`, else out of other cases. Before a passage stands what the case says, else the one before it if that
    has the same title.
    """
    drawn = [*dict.fromkeys(pool or _passages_of(cases))][:MOST]
    return [replace(case, contexts=tuple(_contexts(case, drawn))) for case in cases]


def swap_for(case: Case, cases: Sequence[Case]) -> PromptPassage | None:
    """A passage of another case, none of whose passages and titles are this one's; None where there is none."""
    return next(_strange(case, _passages_of([each for each in cases if each is not case])), None)


def _passages_of(cases: Iterable[Case]) -> Iterator[PromptPassage]:
    """Yields passages of each case, those first that its answer does not rest on."""
    for case in cases:
        numbers = [*(case.foreign or ()), *range(len(case.passages))]
        yield from [case.passages[number] for number in dict.fromkeys(numbers)][:OF_EACH]


def _strange(case: Case, pool: Iterable[PromptPassage]) -> Iterator[PromptPassage]:
    """Yields what of the pool has nothing to do with the case."""
    texts, titles = {each.text for each in case.passages}, {each.title for each in case.passages} - {""}
    return (each for each in pool if each.text.strip() and each.text not in texts and each.title not in titles)


def _contexts(case: Case, pool: Sequence[PromptPassage]) -> Iterator[CaptureContext]:
    filler: list[PromptPassage] = []
    for each in _strange(case, pool):
        filler.append(PromptPassage(excerpt(each.text), each.title))
        if len(filler) >= PASSAGES and sum(len(passage.text) for passage in filler) >= FILLER_CHARACTERS:
            break
    if len(filler) < PASSAGES:
        filler = []
    for number, passage in enumerate(case.passages):
        told = case.contexts[number] if case.contexts else ALONE
        last = case.passages[number - 1] if number else None
        before = last if last and last.title and last.title == passage.title else None
        yield CaptureContext(told.filler or tuple(filler), told.before or before)
