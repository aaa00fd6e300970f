"""Prompts that are as good as a case's own: what may change places, what may not, and what stays where it is."""

from dataclasses import replace
from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from service.lab.questions.cases import Case
from service.lab.questions.variants import DRAWS, Variants
from service.model.capture_context import CaptureContext
from service.model.prompt_builder import PromptPassage

OTHER = PromptPassage("Another.", "X")


def case(titles: str, foreign: tuple[int, ...] | None = None) -> Case:
    """A passage for each letter, which is its title; a dot has none."""
    passages = tuple(PromptPassage(f"{n}.", title.strip(".")) for n, title in enumerate(titles))
    contexts = tuple(CaptureContext(before=passage) for passage in passages)
    return Case("Who?", passages, foreign=foreign, contexts=contexts)


def texts(each: Case) -> str:
    return "".join(passage.text for passage in each.passages)


titles = st.text("ab.", min_size=0, max_size=6)


@given(titles, st.sets(st.integers(0, 5)) | st.none())
def test_what_is_reordered_is_new_whole_and_the_same_every_time(text: str, chosen: set[int] | None) -> None:
    foreign = None if chosen is None else tuple(sorted(n for n in chosen if n < len(text)))
    asked = case(text, foreign)
    found = Variants().reordered(asked)
    assert found == Variants(swap=OTHER).reordered(asked)
    assert len(found) <= DRAWS and len({texts(each) for each in found} | {texts(asked)}) == len(found) + 1
    for each in found:
        assert sorted(each.passages, key=str) == sorted(asked.passages, key=str)
        assert all(context.before == passage for context, passage in zip(each.contexts, each.passages, strict=True))
        told = [asked.passages[n] for n in foreign or ()]
        assert [each.passages[n] for n in each.foreign or ()] == [p for p in each.passages if p in told]
        if foreign:  # what the answer rests on stays in its order
            rest = [[p for p in one.passages if p not in told] for one in (each, asked)]
            assert rest[0] == rest[1]


def test_passages_that_do_not_matter_change_places_among_themselves() -> None:
    asked = case("abcdef", foreign=(0, 2, 5))
    orders = {texts(each) for each in Variants(draws=9).reordered(asked)}
    allowed = set()
    for first, second, third in permutations("025"):
        allowed.add(f"{first}.1.{second}.3.4.{third}.")
    assert orders == allowed - {texts(asked)}


def test_a_lone_one_moves_and_documents_stay_whole() -> None:
    assert {texts(each) for each in Variants(draws=9).reordered(case("abc", foreign=(0,)))} == {"1.0.2.", "1.2.0."}
    assert {texts(each) for each in Variants(draws=9).reordered(case("aabb"))} == {"2.3.0.1."}
    assert Variants().reordered(case("aabb", foreign=(1,))) == [], "it goes on from what the answer rests on"
    assert {texts(each) for each in Variants(draws=9).reordered(case("aa"))} == {"1.0."}
    assert {texts(each) for each in Variants(draws=9).reordered(case("..", foreign=(0, 1)))} == {"1.0."}


def test_where_nothing_is_foreign_the_own_change_places() -> None:
    for foreign in (None, ()):
        assert {texts(each) for each in Variants(draws=9).reordered(case("..", foreign=foreign))} == {"1.0."}
        assert Variants(swap=OTHER).replaced(case("..", foreign=foreign)) is None
        assert Variants(swap=OTHER).left_out(case("..", foreign=foreign)) is None
    assert Variants().reordered(case("a")) == Variants().reordered(case("")) == []


def test_one_that_does_not_matter_is_replaced_and_the_same_is_left_out() -> None:
    asked = case("abcd", foreign=(1, 3))
    replaced, left_out = Variants(swap=OTHER).replaced(asked), Variants(swap=OTHER).left_out(asked)
    assert replaced and left_out
    [at] = [n for n in (1, 3) if replaced.passages[n] == OTHER]
    assert replaced == replace(asked, passages=(*asked.passages[:at], OTHER, *asked.passages[at + 1 :]))
    assert left_out.passages == (*asked.passages[:at], *asked.passages[at + 1 :])
    assert left_out.foreign == ((1,) if at == 3 else (2,))
    assert Variants().replaced(asked) is None
