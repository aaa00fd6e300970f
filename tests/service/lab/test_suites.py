"""Suites of the made-up world: what a seed decides, what each form changes, and how long its prompts are."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from statistics import fmean

import pytest
from transformers import AutoTokenizer

from blend.text.tokenizer import Tokenizer
from service.builtin import CHECKPOINT
from service.lab.questions.cases import Case, SuiteError
from service.lab.questions.forms import FORMS
from service.lab.questions.suites import LEVELS, MOST_PASSAGES, Draw, in_forms, multihop, suites, variants
from service.lab.world.scene import UNKNOWN
from service.model.prompt_builder import SYSTEM, PromptBuilder, PromptPassage, TurnPart, question_turns
from tests.service.lab.test_scene import Aside, read, sentences, understood


@pytest.mark.parametrize("level", LEVELS)
def test_a_longer_suite_begins_with_the_shorter(level: int) -> None:
    longer = multihop(seed=3, size=20, drawn=Draw(level))
    assert len(longer) == 20
    assert multihop(seed=3, size=7, drawn=Draw(level)) == longer[:7]
    assert multihop(seed=3, size=0, drawn=Draw(level)) == []


def test_seed_and_level_decide_the_suite() -> None:
    first = multihop(seed=0, size=10, drawn=Draw(1))
    assert multihop(seed=0, size=10, drawn=Draw(1)) == first
    assert not set(multihop(seed=1, size=10, drawn=Draw(1))) & set(first)
    assert not set(multihop(seed=0, size=10, drawn=Draw(2))) & set(first)
    assert len(set(first)) == 10


@pytest.mark.parametrize("level", LEVELS)
def test_every_second_question_needs_two_passages(level: int) -> None:
    suite = multihop(seed=0, size=20, drawn=Draw(level))
    assert [case.needs for case in suite] == [1, 2] * 10
    assert all(len(case.answers) == 1 and len(case.passages) > 1 for case in suite)


def test_a_level_that_does_not_exist_is_refused() -> None:
    with pytest.raises(SuiteError, match="difficulty is one of 1, 2, 3, got 4"):
        multihop(seed=0, size=1, drawn=Draw(4))


def cases(form: str) -> list[Case]:
    return multihop(seed=5, size=30, drawn=Draw(form=form))


def answers(case: Case) -> list[str]:
    """What a reader of the text finds, in the order of its passages."""
    return [each.text for each in read([passage.text for passage in case.passages]).answers(case.question)]


def texts(case: Case) -> list[str]:
    """Of its turns."""
    return ["".join(part.text for part in turn.parts) for turn in case.turns]


def test_the_form_with_titles_is_the_one_in_which_the_service_writes() -> None:
    for case in cases("titled"):
        assert case.turns == question_turns(case.passages, question=case.question)


@pytest.mark.parametrize("form", FORMS)
def test_a_layout_asks_the_same_of_the_same_passages(form: str) -> None:
    for case, plain in zip(cases(form), cases("titled"), strict=True):
        assert replace(case, form=plain.form) == plain
        shown = [part for turn in case.turns for part in turn.parts if part.passage is not None]
        assert shown == [TurnPart(passage.text, number) for number, passage in enumerate(plain.passages)]
        assert case.turns[-1].parts[-1].text.endswith(plain.question)


@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        ("titled", "One.\n(A)\n\nTwo.\n\nQuestion: Who?"),
        ("untitled", "One.\n\nTwo.\n\nQuestion: Who?"),
        ("numbered", "[1] One.\n[2] Two.\nQuestion: Who?"),
        ("bare", "One. Two.\n\nQuestion: Who?"),
        ("system", "Who?"),
    ],
)
def test_what_a_layout_writes(form: str, wanted: str) -> None:
    case = Case("Who?", (PromptPassage("One.", "A"), PromptPassage("Two.")), form=FORMS[form])
    assert texts(case)[-1] == wanted
    assert (texts(case)[0] == f"{SYSTEM}\n\nOne.\n\nTwo.\n\n") == (form == "system")


def test_passages_in_json_are_json() -> None:
    case = Case("Who?", (PromptPassage("One.", 'The "A"'), PromptPassage("Two.")), form=FORMS["json"])
    body, _, asked = texts(case)[-1].partition("\n\n")
    assert json.loads(body) == {"documents": [{"title": 'The "A"', "text": "One."}, {"title": "", "text": "Two."}]}
    assert asked == "Question: Who?"


@pytest.mark.parametrize("form", ["fillers", "unlinked", "history"])
def test_what_a_scene_holds_in_other_forms_has_its_answer(form: str) -> None:
    for case in cases(form):
        assert answers(case) == [*case.answers]


def test_reversed_documents_keep_their_passages_in_order() -> None:
    for case, plain in zip(cases("reversed"), cases("titled"), strict=True):
        documents = [[*group] for _, group in groupby(plain.passages, lambda passage: passage.title)]
        assert [*case.passages] == [passage for document in reversed(documents) for passage in document]
        assert (case.question, case.answers) == (plain.question, plain.answers)


def test_fillers_tell_nothing_and_nothing_is_linked_where_it_says_so() -> None:
    for case in cases("fillers"):
        telling = [p for p in case.passages if not all(understood(s) == Aside() for s in sentences(p.text))]
        assert len(telling) < len(case.passages)
    assert not any(read([p.text for p in case.passages]).names for case in cases("unlinked"))


@pytest.mark.parametrize("form", ["unknown", "missing"])
def test_nobody_can_answer_what_is_unknown(form: str) -> None:
    for case in cases(form):
        assert case.answers == (UNKNOWN,) and case.needs == 0
        assert answers(case) == []


def test_a_history_holds_other_questions_with_their_answers() -> None:
    asked = 0
    for case in cases("history"):
        for question, answer in zip(case.before[::2], case.before[1::2], strict=True):
            assert (question.role, answer.role) == ("user", "assistant")
            assert question.parts[0].text != case.question
            assert answers(replace(case, question=question.parts[0].text)) == [answer.parts[0].text]
            asked += 1
    assert asked > 30


@pytest.mark.parametrize("tokens", [300, 500, 1000, 2000])
def test_prompts_are_about_as_long_as_they_should_be(tokens: int) -> None:
    tokenizer = Tokenizer(AutoTokenizer.from_pretrained(CHECKPOINT))
    drawn = multihop(seed=1, size=30, drawn=Draw(tokens=tokens))
    found = [PromptBuilder(tokenizer).lay(case.turns).tokens for case in drawn]
    assert fmean(found) == pytest.approx(tokens, rel=0.15)
    assert max(len(case.passages) for case in drawn) <= MOST_PASSAGES


def test_every_difficulty_form_number_and_length_is_a_suite_of_its_own() -> None:
    drawn = suites(variants([1, 3], forms=["titled", "json"], passages=[2, 16], tokens=[500]), seed=2, size=3)
    names = ["difficulty 1", "difficulty 3", "json", "2 passages", "16 passages", "500 tokens"]
    assert [case.suite for case in drawn] == [name for name in names for _ in range(3)]
    assert [replace(case, suite="") for case in drawn[:3]] == multihop(seed=2, size=3, drawn=Draw(1))
    assert {len(case.passages) for case in drawn if case.suite == "16 passages"} == {16}


def test_a_file_is_asked_in_every_layout() -> None:
    found = in_forms([Case("Who?", (PromptPassage("One."),))], ["json", "bare"])
    assert [(case.suite, case.form) for case in found] == [("json", FORMS["json"]), ("bare", FORMS["bare"])]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: Draw(form="xml"), "no form is named 'xml': choose of titled"),
        (lambda: Draw(passages=25), "2 to 24 passages, got 25"),
        (lambda: Draw(passages=1), "2 to 24 passages, got 1"),
        (lambda: Draw(tokens=50), "100 to 2400 tokens, got 50"),
        (lambda: in_forms([], ["reversed"]), "no form of a file's questions is named 'reversed'"),
        (lambda: variants([], forms=[], passages=[], tokens=[]), "at least one difficulty"),
    ],
)
def test_what_cannot_be_drawn_is_named(wrong: Callable[[], object], words: str) -> None:
    with pytest.raises(SuiteError, match=words):
        wrong()
