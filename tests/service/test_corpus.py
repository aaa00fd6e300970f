"""The user's own corpus: how it is cut, which passages a question gets, and what is said where it cannot be used."""

import re
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from service.evaluate.cases import Case, SuiteError
from service.evaluate.corpus import corpus_cases
from service.prompts import Titled

ALL = 10**6
TOWNS = {
    "calton.md": "# Calton\n\nCalton builds boats. Its harbour freezes every winter.\n",
    "halford.txt": "Halford is governed by Bela.\n\nIts flag is green.\n",
    "old/marbury.txt": "Marbury grows plums.\n",
    "old/notes.pdf": "Bela grows nothing here.",
}


def folder(root: Path, files: dict[str, str]) -> Path:
    corpus = root / "corpus"
    corpus.mkdir()
    for name, text in files.items():
        (corpus / name).parent.mkdir(exist_ok=True)
        (corpus / name).write_text(text, encoding="utf-8")
    return corpus


def asked(root: Path, *questions: str) -> Path:
    path = root / "questions.txt"
    path.write_text("\n".join(questions), encoding="utf-8")
    return path


def titles(case: Case) -> list[str]:
    return [passage.title for passage in case.passages]


def texts(case: Case) -> list[str]:
    return [passage.text for passage in case.passages]


def passages(root: Path, text: str) -> list[str]:
    """All of a corpus of one file."""
    (root / "book.txt").write_text(text, encoding="utf-8")
    (case,) = corpus_cases(root / "book.txt", asked(root, "???"), top_k=ALL)
    return texts(case)


def numbered(count: int, start: int = 0) -> str:
    return " ".join(f"w{number}" for number in range(start, start + count))


def drawn_text(seed: int) -> str:
    """Paragraphs of all lengths; now and then a heading, an endless sentence, a table, or far too much white space."""
    random = Random(seed)
    paragraphs: list[str] = []
    for _ in range(random.randint(1, 25)):
        sentences = [numbered(random.choice([1, 3, 12, 40, 200])) for _ in range(random.randint(1, 12))]
        ends = [random.choice([". ", "! ", '." ', ".\n", ", ", "\n| "]) for _ in sentences]
        paragraphs.append("".join(a + b for a, b in zip(sentences, ends, strict=True)))
    return "\n \n\t" * random.randint(0, 1) + random.choice(["\n\n", "\r\n\r\n", "\n  \n\n"]).join(paragraphs)


@pytest.mark.parametrize("seed", range(40))
def test_nothing_is_lost_nothing_is_empty_and_nothing_is_too_long(seed: int, tmp_path: Path) -> None:
    text = drawn_text(seed)
    found = passages(tmp_path, text)
    assert " ".join(found).split() == text.split()
    assert all(1 <= len(each.split()) <= 160 and each == each.strip() for each in found)


@pytest.mark.parametrize("seed", range(40))
def test_passages_have_about_a_hundred_words(seed: int, tmp_path: Path) -> None:
    """Two neighbours are never so short that one passage of fitting size could hold both."""
    sizes = [len(each.split()) for each in passages(tmp_path, drawn_text(seed))]
    assert all(one + other > 100 for one, other in pairwise(sizes))


def test_short_paragraphs_stand_together_and_keep_their_border(tmp_path: Path) -> None:
    text = "\n\n".join([numbered(40), numbered(50, 40), numbered(90, 90)])
    assert passages(tmp_path, text) == [f"{numbered(40)}\n\n{numbered(50, 40)}", numbered(90, 90)]


def test_a_paragraph_of_fitting_size_stays_whole(tmp_path: Path) -> None:
    paragraphs = [f"{numbered(75)}. {numbered(75)}.", f"{numbered(80)}. {numbered(80)}."]
    assert passages(tmp_path, "\n\n".join(paragraphs)) == paragraphs


def test_a_long_paragraph_is_cut_at_sentence_ends(tmp_path: Path) -> None:
    sentences = [f"{numbered(90)}{end}" for end in (".", "!", '?"', ".)", "…", ".")]
    assert passages(tmp_path, " ".join(sentences)) == sentences
    pair = f"{numbered(50)}. {numbered(60)}."
    assert passages(tmp_path, f"{pair} {pair}") == [pair, pair]


def test_a_long_sentence_is_cut_at_spaces(tmp_path: Path) -> None:
    assert passages(tmp_path, numbered(250)) == [numbered(100), numbered(100, 100), numbered(50, 200)]


def test_a_folder_gives_its_texts_in_order_and_nothing_else(tmp_path: Path) -> None:
    (case,) = corpus_cases(folder(tmp_path, TOWNS), asked(tmp_path, "???"))
    assert titles(case) == ["calton", "halford", "marbury"]
    assert texts(case)[2] == "Marbury grows plums."


def test_a_question_gets_the_passages_that_share_its_words(tmp_path: Path) -> None:
    questions = asked(tmp_path, "Who governs Halford?", "What GROWS there?", "Which towns have plums?")
    found = corpus_cases(folder(tmp_path, TOWNS), questions)
    assert [case.question for case in found] == ["Who governs Halford?", "What GROWS there?", "Which towns have plums?"]
    assert [titles(case) for case in found] == [["halford"], ["marbury"], ["marbury"]]


def test_a_word_is_found_in_its_other_forms(tmp_path: Path) -> None:
    found = corpus_cases(folder(tmp_path, TOWNS), asked(tmp_path, "governing", "boat", "freezing"))
    assert [titles(case) for case in found] == [["halford"], ["calton"], ["calton"]]


def test_a_title_is_found_too(tmp_path: Path) -> None:
    (case,) = corpus_cases(folder(tmp_path, {"a.txt": "Green.", "halford.txt": "Blue."}), asked(tmp_path, "Halford?"))
    assert case == Case("Halford?", (Titled("Blue.", "halford"),))


def page(*words: str) -> str:
    """A paragraph that shares its passage with no other."""
    return " ".join([*words, *["filler"] * (100 - len(words))])


def test_documents_stand_by_their_best_passage_and_their_passages_in_order(tmp_path: Path) -> None:
    files = {
        "a.txt": "\n\n".join([page("heron"), page("none"), page("heron")]),
        "b.txt": "\n\n".join([page("heron"), page("heron", "otter", "otter"), page("heron")]),
    }
    (case,) = corpus_cases(folder(tmp_path, files), asked(tmp_path, "heron otter"))
    assert titles(case) == ["b", "b", "b", "a", "a"]
    assert texts(case) == [page("heron"), page("heron", "otter", "otter"), page("heron"), page("heron"), page("heron")]


def test_top_k_is_the_number_of_passages(tmp_path: Path) -> None:
    corpus = folder(tmp_path, {"a.txt": "\n\n".join(page("heron", f"p{number}") for number in range(9))})
    questions = asked(tmp_path, "heron", "p7", "nobody")
    for top_k in (1, 3, 5):
        every, one, none = corpus_cases(corpus, questions, top_k=top_k)
        assert (len(every.passages), len(one.passages), len(none.passages)) == (top_k, 1, top_k)
        assert texts(none) == [page("heron", f"p{number}") for number in range(top_k)]


def test_two_files_of_one_name_are_two_documents(tmp_path: Path) -> None:
    files = {"a/notes.md": page("heron"), "b.md": page("heron", "heron"), "c/notes.md": page("heron", "heron", "heron")}
    (case,) = corpus_cases(folder(tmp_path, files), asked(tmp_path, "heron"))
    assert titles(case) == ["notes", "b", "notes"]


def test_stop_words_count_only_where_nothing_else_is_left(tmp_path: Path) -> None:
    corpus = folder(tmp_path, {"a.txt": "The way to be or not to be.", "b.txt": "The plums."})
    every = corpus_cases(corpus, asked(tmp_path, "The plums, Which?", "To be?"))
    assert [titles(case) for case in every] == [["b"], ["a"]]


SYNTAX = [
    '"',
    "'; DROP TABLE passages; --",
    "AND",
    "NOT plums",
    "plums NEAR(",
    "(((",
    "title:plums",
    "plums*",
    "^plums",
]
SYNTAX += ["{text title}: plums", "+-=:*^", "a\x00 plums", "\u2028", "_"]
WRITTEN = ["¿plums?", "²", "ß", "हिन्दी", "李白", "a" * 5000, numbered(3000)]


@pytest.mark.parametrize("question", [*SYNTAX, *WRITTEN])
def test_any_text_is_a_safe_question(question: str, tmp_path: Path) -> None:
    (case,) = corpus_cases(folder(tmp_path, TOWNS), asked(tmp_path, f"the {question}?"))
    assert case.question == f"the {question}?"
    assert titles(case) == (["marbury"] if "plums" in question else ["calton", "halford", "marbury"])


def test_a_question_from_json_may_hold_half_a_character(tmp_path: Path) -> None:
    (tmp_path / "q.json").write_text('[{"question": "\\ud800 plums", "answers": ["Marbury"]}]', encoding="utf-8")
    (case,) = corpus_cases(folder(tmp_path, TOWNS), tmp_path / "q.json")
    assert titles(case) == ["marbury"] and case.answers == ("Marbury",)


@pytest.mark.parametrize("files", [{}, {"a.txt": " \n\n"}, {"a.pdf": "Bela."}])
def test_a_corpus_without_text_is_refused(files: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match=r"corpus' holds no text: fill a \.md or \.txt file"):
        corpus_cases(folder(tmp_path, files), asked(tmp_path, "Who?"))


def test_a_path_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="nowhere' does not exist: name a text file or a folder"):
        corpus_cases(tmp_path / "nowhere", asked(tmp_path, "Who?"))
    with pytest.raises(SuiteError, match=r"nowhere\.txt' cannot be read: name a file that exists"):
        corpus_cases(folder(tmp_path, TOWNS), tmp_path / "nowhere.txt")


def test_a_file_that_is_no_text_is_named_with_its_line(tmp_path: Path) -> None:
    corpus = folder(tmp_path, TOWNS)
    (corpus / "old" / "latin.txt").write_bytes(b"One.\nTwo.\n\xe9t\xe9\n")
    with pytest.raises(
        SuiteError, match=rf"{re.escape(str(Path('old', 'latin.txt')))}, line 3 .* save the file as UTF-8"
    ):
        corpus_cases(corpus, asked(tmp_path, "Who?"))


def test_no_questions_and_no_passages_are_refused(tmp_path: Path) -> None:
    corpus = folder(tmp_path, TOWNS)
    with pytest.raises(SuiteError, match=r"questions\.txt' holds no questions"):
        corpus_cases(corpus, asked(tmp_path, "", " "))
    with pytest.raises(SuiteError, match="at least one passage, got top_k 0"):
        corpus_cases(corpus, asked(tmp_path, "Who?"), top_k=0)
