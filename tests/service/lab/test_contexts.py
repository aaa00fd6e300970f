"""What the passages of a suite are captured behind: a fixed filler that tells no case's own, and its documents."""

from dataclasses import replace

from service.lab.questions.cases import Case
from service.lab.questions.contexts import in_contexts, swap_for
from service.model.capture_context import EXCERPT_CHARACTERS, FILLER_CHARACTERS, PASSAGES, CaptureContext
from service.model.prompt_builder import PromptPassage


def case(name: str, passages: int = 4) -> Case:
    """Two documents of two passages each, the second of which the answer does not rest on."""
    told = [PromptPassage(f"{name} {n} " + "tells of wells. " * 30, f"{name}{n // 2}") for n in range(passages)]
    return Case(f"Who of {name}?", tuple(told), foreign=tuple(range(2, passages)))


CASES = [case(name) for name in "abcdef"]


def test_filler_is_of_other_cases_and_the_same_for_all_whose_it_is_not() -> None:
    found = in_contexts(CASES)
    fillers = [{context.filler for context in each.contexts} for each in found]
    assert all(len(each) == 1 for each in fillers)
    [*_, [own], [last]] = [[*each] for each in fillers]
    assert own == last and [each.title for each in own] == ["a1", "a1", "b1", "b1"]
    for each, [filler] in zip(CASES, fillers, strict=True):
        assert len(filler) >= PASSAGES and sum(len(passage.text) for passage in filler) >= FILLER_CHARACTERS
        assert not {passage.title for passage in filler} & {passage.title for passage in each.passages}
        assert max(len(passage.text) for passage in filler) <= EXCERPT_CHARACTERS
    assert [replace(each, contexts=()) for each in found] == CASES


def test_too_few_others_are_no_filler() -> None:
    assert {context.filler for each in in_contexts(CASES[:2]) for context in each.contexts} == {()}
    [alone] = in_contexts(CASES[:1], [PromptPassage(f"{n}. " * 100) for n in range(PASSAGES)])
    assert {len(context.filler) for context in alone.contexts} == {PASSAGES}


def test_before_a_passage_stands_the_one_of_its_title_or_what_the_case_says() -> None:
    [found] = in_contexts([CASES[0]])
    first, _second, third, fourth = CASES[0].passages
    assert [each.before for each in found.contexts] == [None, first, None, third]
    untitled = replace(CASES[0], passages=(PromptPassage("One."), PromptPassage("Two.")), foreign=None)
    assert [each.before for each in in_contexts([untitled])[0].contexts] == [None, None]
    told = replace(CASES[0], contexts=(CaptureContext(before=fourth), *[CaptureContext()] * 3))
    assert [each.before for each in in_contexts([told])[0].contexts] == [fourth, first, None, third]


def test_what_takes_the_place_of_a_passage_is_of_another_case() -> None:
    assert swap_for(CASES[0], CASES) == CASES[1].passages[2]
    assert swap_for(CASES[1], CASES) == CASES[0].passages[2]
    assert swap_for(CASES[0], CASES[:1]) is None
