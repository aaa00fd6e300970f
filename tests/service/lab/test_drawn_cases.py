"""Suites without labels: what is known of their answers, out of documents that are drawn themselves."""

from functools import cache
from random import Random

import pytest

from service.lab.questions.cases import Case, SuiteError
from service.lab.questions.contexts import in_contexts
from service.lab.questions.drawn_cases import IN_ORDER, SCATTERED, SHUFFLED, SUITES, CutDocument, DrawnCases, Shape

WITH_FOILS = {"records", "parted records", "needle", "needles", "values", "chain"}


@cache
def documents(seed: int, count: int = 12) -> list[CutDocument]:
    random = Random(seed)
    words = ["".join(random.choices("abdeginorst", k=random.randint(3, 8))) for _ in range(400)]

    def part() -> str:
        sentences = (" ".join(random.sample(words, random.randint(6, 12))) for _ in range(random.randint(5, 9)))
        return ". ".join(sentences) + "."

    return [CutDocument(f"Book {n}", tuple(part() for _ in range(random.randint(3, 9)))) for n in range(count)]


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("seed", range(3))
def test_what_is_asked_stands_in_what_is_shown(suite: str, seed: int) -> None:
    drawing, again = (DrawnCases(documents(seed), seed=seed) for _ in range(2))
    backwards = [again.draw(suite, number) for number in reversed(range(12))]
    for number in range(12):
        case = drawing.draw(suite, number)
        assert case == backwards[-1 - number] and case.suite == suite
        assert case.answers[0].startswith(case.skip) and case.answers[0] != case.skip
        own = [each.text for at, each in enumerate(case.passages) if at not in (case.foreign or ())]
        assert own and case.foreign
        assert bool(case.foils) == (suite in WITH_FOILS)
        assert case.answers[0] not in case.foils and all(each.startswith(case.skip) for each in case.foils)
        told = case.answers[0].removeprefix(case.skip).strip()
        if suite in WITH_FOILS:
            assert all(any(number in text for text in own) for number in told.split(" and "))
            assert case.wanted == (told,)
        elif suite in ("blanks", "copies"):
            assert any(case.answers[0] in text for text in own) and case.wanted == ()
        elif suite == "continuation":
            assert not any(case.answers[0] in text for text in own), "it stands behind them"
        if suite not in ("records", "parted records", "chain"):
            assert told not in case.question


@pytest.mark.parametrize("order", [IN_ORDER, SCATTERED, SHUFFLED])
def test_own_parts_stand_as_the_shape_says(order: str) -> None:
    drawing = DrawnCases(documents(7), seed=7, shape=Shape(passages=9, own=4, order=order))
    ascending, together = list[bool](), list[bool]()
    for number in range(30):
        case = drawing.draw("continuation", number)
        own = [at for at in range(len(case.passages)) if at not in (case.foreign or ())]
        told = next(each for each in documents(7) if each.title == case.passages[own[0]].title)
        places = [told.parts.index(case.passages[at].text) for at in own]
        if len(own) > 1:
            ascending.append(places == sorted(places))
            together.append(own == [*range(own[0], own[0] + len(own))])
        for at, place in zip(own, places, strict=True):
            before = case.contexts[at].before
            assert (before.text if before else None) == (told.parts[place - 1] if place else None)
    assert all(together) == (order == IN_ORDER)
    assert all(ascending) if order != SHUFFLED else not any(ascending)


def test_a_made_up_case_brings_a_filler_that_tells_nothing_of_it() -> None:
    drawing = DrawnCases(documents(1), seed=1)
    cases = in_contexts([drawing.draw(suite, number) for suite in ("needles", "records") for number in range(8)])
    for case in cases:
        [filler] = {context.filler for context in case.contexts}
        said = " ".join(each.text for each in filler)
        assert len(filler) >= 4
        names = [each.text.split(" is a ")[0] for each in case.passages if not each.title]
        assert not any(name in said for name in names)
        assert not any(answer in said for answer in case.wanted)


@pytest.mark.parametrize("suite", ["continuation", "examples", "blanks", "copies", "needles"])
def test_documents_that_are_too_short_are_refused(suite: str) -> None:
    with pytest.raises(SuiteError, match=r"wanted, the corpus has|name longer documents"):
        DrawnCases([CutDocument("One", ("Few words.",))], seed=0).draw(suite, 0)
    with pytest.raises(SuiteError, match="no suite is named 'nobody': choose of continuation"):
        DrawnCases(documents(0), seed=0).draw("nobody", 0)


def test_one_document_alone_is_asked_of() -> None:
    [alone] = documents(5, count=1)
    for suite in ("continuation", "blanks", "copies"):
        case: Case = DrawnCases([alone], seed=0).draw(suite, 0)
        assert case.passages and not case.foreign
