"""Suites: every form in which questions are published is read, and what cannot be used is named with its place."""

import json
from pathlib import Path

import pytest

from service.lab.questions.cases import Case, SuiteError, read_cases, read_questions
from service.model.prompt_builder import PromptPassage

ENTRY = {"question": "Who?", "answers": ["Bela"], "ctxs": [{"title": "Register 12", "text": "Bela lives."}]}
WANTED = Case("Who?", (PromptPassage("Bela lives.", "Register 12"),), ("Bela",))
MUSIQUE = {
    "ctxs": [{"id": "7", "title": "A", "text": "One.", "score": 0.5}, {"title": "B", "text": "Two."}],
    "question": "Who?",
    "answer": "Bela",
}
HOTPOT = {
    "_id": "5a8b",
    "question": "Who?",
    "answer": "Bela",
    "supporting_facts": [["A", 0]],
    "context": [["A", ["One.", " Two."]], ["B", ["Three.", "Four. "]]],
}


def suite(folder: Path, content: object, name: str = "suite.json") -> Path:
    """A text as it is, anything else as JSON."""
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "content",
    [
        pytest.param([ENTRY, ENTRY], id="a list"),
        pytest.param({"version": 1, "data": [ENTRY, ENTRY]}, id="an object with one list"),
        pytest.param(f"{json.dumps(ENTRY)}\n{json.dumps(ENTRY)}\n", id="lines"),
        pytest.param(f"\n{json.dumps(ENTRY)}\r\n\n  {json.dumps(ENTRY)}", id="lines with gaps"),
        pytest.param("\ufeff" + json.dumps([ENTRY, ENTRY]), id="a byte order mark"),
    ],
)
def test_a_file_of_every_form_holds_the_same_questions(content: object, tmp_path: Path) -> None:
    assert read_cases(suite(tmp_path, content)) == [WANTED, WANTED]


@pytest.mark.parametrize("content", [ENTRY, json.dumps(ENTRY), json.dumps(ENTRY, indent=2)])
def test_one_entry_alone_is_a_suite(content: object, tmp_path: Path) -> None:
    assert read_cases(suite(tmp_path, content)) == [WANTED]


def test_a_line_separator_inside_of_a_text_ends_no_line(tmp_path: Path) -> None:
    lines = [json.dumps(ENTRY | {"question": question}, ensure_ascii=False) for question in ("a\u2028b", "c\x85d")]
    assert [case.question for case in read_cases(suite(tmp_path, "\n".join(lines)))] == ["a\u2028b", "c\x85d"]


def test_the_form_of_musique_is_read(tmp_path: Path) -> None:
    assert read_cases(suite(tmp_path, [MUSIQUE])) == [
        Case("Who?", (PromptPassage("One.", "A"), PromptPassage("Two.", "B")), ("Bela",))
    ]


def test_the_form_of_hotpotqa_is_read_and_its_sentences_are_joined_by_one_space(tmp_path: Path) -> None:
    (case,) = read_cases(suite(tmp_path, [HOTPOT]))
    passages = (PromptPassage("One. Two.", "A"), PromptPassage("Three. Four.", "B"))
    assert case == Case("Who?", passages, ("Bela",), foreign=(1,))
    columns = HOTPOT | {"supporting_facts": {"title": ["B", "B"], "sent_id": [0, 1]}}
    assert read_cases(suite(tmp_path, [columns]))[0].foreign == (0,)


@pytest.mark.parametrize(
    ("passages", "wanted"),
    [
        ({"contexts": ["One.", "Two."]}, (PromptPassage("One."), PromptPassage("Two."))),
        ({"context": ["One."]}, (PromptPassage("One."),)),
        ({"passages": [["A", "One."]]}, (PromptPassage("One.", "A"),)),
        ({"paragraphs": [{"title": "A", "paragraph_text": "One."}]}, (PromptPassage("One.", "A"),)),
        (
            {"documents": [{"content": "One."}, {"passage": "Two.", "title": None}]},
            (PromptPassage("One."), PromptPassage("Two.")),
        ),
        ({"ctxs": []}, ()),
    ],
)
def test_passages_come_under_several_names(passages: object, wanted: tuple[PromptPassage, ...], tmp_path: Path) -> None:
    assert isinstance(passages, dict)
    (case,) = read_cases(suite(tmp_path, [{"query": "Who?", **passages}]))
    assert case == Case("Who?", wanted)


@pytest.mark.parametrize(
    ("answers", "wanted"),
    [
        ({"answers": ["Bela", "B."]}, ("Bela", "B.")),
        ({"answers": "Bela"}, ("Bela",)),
        ({"answer": "Bela"}, ("Bela",)),
        ({"answer": ["Bela"]}, ("Bela",)),
        ({"answers": []}, ()),
        ({"answer": None}, ()),
        ({}, ()),
    ],
)
def test_answers_are_a_text_a_list_or_absent(answers: object, wanted: tuple[str, ...], tmp_path: Path) -> None:
    assert isinstance(answers, dict)
    (case,) = read_cases(suite(tmp_path, [{"question": "Who?", "ctxs": ["One."], **answers}]))
    assert case.answers == wanted


BAD = {
    "no question": ({"ctxs": []}, r"entry 2: 'question' must be a text, got None"),
    "a question of white space": (ENTRY | {"question": " \n"}, r"entry 2: 'question' must be a text"),
    "a question that is a number": (ENTRY | {"question": 7}, r"entry 2: 'question' must be a text, got 7"),
    "no passages": ({"question": "Who?"}, r"entry 2: no passages; give them as 'ctxs'"),
    "passages that are a text": (
        {"question": "Who?", "context": "One."},
        r"entry 2: 'context' must be a list, got str",
    ),
    "a passage that is a number": ({"question": "Who?", "ctxs": ["One.", 7]}, r"entry 2, ctxs\[1\]: a text"),
    "a passage without text": ({"question": "Who?", "ctxs": [{"title": "A"}]}, r"entry 2, ctxs\[0\]: a text"),
    "a passage with a list as text": (
        {"question": "Who?", "ctxs": [{"text": ["One."]}]},
        r"entry 2, ctxs\[0\]: a text",
    ),
    "sentences that are numbers": ({"question": "Who?", "context": [["A", [1]]]}, r"entry 2, context\[0\]: a text"),
    "a pair without a title": ({"question": "Who?", "context": [[None, "One."]]}, r"entry 2, context\[0\]: a text"),
    "answers that are a number": (ENTRY | {"answers": 7}, r"entry 2: 'answers' must be a list of texts, got 7"),
    "answers that are zero": (ENTRY | {"answers": 0}, r"entry 2: 'answers' must be a list of texts, got 0"),
    "answers that are an object": (ENTRY | {"answers": {}}, r"entry 2: 'answers' must be a list of texts"),
    "an answer that is a number": (ENTRY | {"answers": ["Bela", 7]}, r"entry 2: 'answers' must be a list of texts"),
    "an entry that is a text": ("Who?", r"entry 2: an object with a question is wanted, got str"),
    "an entry that is a list": ([ENTRY], r"entry 2: an object with a question is wanted, got list"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_entry_is_named_in_a_list_and_on_a_line(name: str, tmp_path: Path) -> None:
    entry, words = BAD[name]
    with pytest.raises(SuiteError, match=rf"suite\.json, {words}"):
        read_cases(suite(tmp_path, [ENTRY, entry]))
    path = suite(tmp_path, f"{json.dumps(ENTRY)}\n{json.dumps(entry)}", "suite.jsonl")
    with pytest.raises(SuiteError, match=rf"suite\.jsonl, {words.replace('entry 2: an', '(entry|line) 2: an')}"):
        read_cases(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "suite.json' holds no questions"),
        (" \n\n", "suite.json' holds no questions"),
        ([], "suite.json' holds no questions"),
        ({"data": []}, "suite.json' holds no questions"),
        ("7", "suite.json holds no list of questions"),
        ({"a": [ENTRY], "b": [ENTRY]}, "suite.json, entry 1: 'question' must be a text"),
        ({"data": 7}, "suite.json, entry 1: 'question' must be a text"),
        (f"{json.dumps(ENTRY)}\n{{'question'", "suite.json, line 2 is no JSON"),
        ("Who?\n", "suite.json, line 1 is no JSON"),
        ('[\n{"question": "Who?",\n}]', "suite.json, line 3 is no JSON"),
    ],
)
def test_a_bad_file_is_named(content: object, words: str, tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match=words):
        read_cases(suite(tmp_path, content))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match=r"nowhere\.json' cannot be read: name a file that exists"):
        read_cases(tmp_path / "nowhere.json")
    with pytest.raises(SuiteError, match="cannot be read: name a file that exists"):
        read_cases(tmp_path)
    (tmp_path / "latin.json").write_bytes(b'[{"question":\n"\xe9t\xe9?"}]')
    with pytest.raises(SuiteError, match=r"latin\.json, line 2 cannot be read: save the file as UTF-8"):
        read_cases(tmp_path / "latin.json")


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ("Who?\r\n\n  Where? \n", "questions.txt"),
        ("\ufeffWho?\nWhere?", "questions"),
        ([{"question": "Who?"}, {"query": "Where?", "ctxs": 7}], "questions.json"),
        ([{"question": "Who?"}, {"question": "Where?"}], "questions.txt"),
        ('{"question": "Who?"}\n{"question": "Where?"}', "questions.jsonl"),
    ],
)
def test_questions_need_no_passages(content: object, name: str, tmp_path: Path) -> None:
    assert read_questions(suite(tmp_path, content, name)) == [Case("Who?", ()), Case("Where?", ())]


def test_questions_keep_their_answers(tmp_path: Path) -> None:
    path = suite(tmp_path, [{"question": "Who?", "answers": ["Bela"]}])
    assert read_questions(path) == [Case("Who?", (), ("Bela",))]


@pytest.mark.parametrize(
    ("content", "name", "words"),
    [
        ("\n \n", "questions.txt", "holds no questions"),
        ("Who?\n", "questions.json", "line 1 is no JSON"),
        ('["Who?"]', "questions.json", "entry 1: an object with a question is wanted"),
        ([{"answer": "Bela"}], "questions.json", "entry 1: 'question' must be a text"),
    ],
)
def test_bad_questions_are_named(content: object, name: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match=words) as raised:
        read_questions(suite(tmp_path, content, name))
    assert name in str(raised.value)
