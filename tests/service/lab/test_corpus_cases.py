"""The user's own corpus: which passages a question gets, and what is said where it cannot be used."""

from pathlib import Path

import pytest

from service.lab.questions.cases import Case, SuiteError
from service.lab.questions.corpus_cases import corpus_cases
from service.model.prompt_builder import PromptPassage

TOWNS = {
    "calton.md": "# Calton\n\nCalton builds boats. Its harbour freezes every winter.\n",
    "halford.txt": "Halford is governed by Bela.\n\nIts flag is green.\n",
    "old/marbury.html": "<title>Marbury</title><p>Marbury grows plums.</p>",
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


def paragraph(*words: str) -> str:
    """It shares its passage with no other."""
    return " ".join([*words, *["filler"] * (100 - len(words))])


def test_a_question_gets_the_passages_that_share_its_words(tmp_path: Path) -> None:
    questions = asked(tmp_path, "Who governs Halford?", "What GROWS?", "Which towns have plums?", "freezing")
    found, problems = corpus_cases(folder(tmp_path, TOWNS), questions)
    assert [titles(case) for case in found] == [["halford"], ["Marbury"], ["Marbury"], ["Calton"]]
    assert [Path(problem.place).name for problem in problems] == ["notes.pdf"]
    assert found[0].passages[0].text == TOWNS["halford.txt"].strip()


def test_documents_stand_by_their_best_passage_and_their_passages_in_order(tmp_path: Path) -> None:
    texts = {
        "a.txt": [paragraph("heron", "one"), paragraph("none"), paragraph("heron", "two")],
        "b.txt": [paragraph("heron", "three"), paragraph("heron", "otter", "otter"), paragraph("heron", "four")],
    }
    files = {name: "\n\n".join(paragraphs) for name, paragraphs in texts.items()}
    [case], _ = corpus_cases(folder(tmp_path, files), asked(tmp_path, "heron otter"))
    assert titles(case) == ["b", "b", "b", "a", "a"]
    assert [each.text for each in case.passages] == [*texts["b.txt"], texts["a.txt"][0], texts["a.txt"][2]]


def test_a_question_gets_five_passages_and_one_that_nothing_fits_gets_the_first(tmp_path: Path) -> None:
    paragraphs = [paragraph("heron", f"p{number}") for number in range(9)]
    corpus = folder(tmp_path, {"a.txt": "\n\n".join(paragraphs)})
    (every, one, none), _ = corpus_cases(corpus, asked(tmp_path, "heron", "p7", "nobody"))
    assert (len(every.passages), len(one.passages)) == (5, 1)
    assert none.passages == tuple(PromptPassage(text, "a") for text in paragraphs[:5])


@pytest.mark.parametrize("files", [{}, {"a.txt": " \n\n"}, {"a.pdf": "Bela."}])
def test_a_corpus_without_text_is_refused(files: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match=f"corpus' holds no text: .*{next(iter(files), 'no files')}"):
        corpus_cases(folder(tmp_path, files), asked(tmp_path, "Who?"))


def test_a_path_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="nowhere' does not exist: name a file or a folder"):
        corpus_cases(tmp_path / "nowhere", asked(tmp_path, "Who?"))
    with pytest.raises(SuiteError, match=r"nowhere\.txt' cannot be read: name a file that exists"):
        corpus_cases(folder(tmp_path, TOWNS), tmp_path / "nowhere.txt")


def test_no_questions_are_refused(tmp_path: Path) -> None:
    corpus = folder(tmp_path, TOWNS)
    with pytest.raises(SuiteError, match=r"questions\.txt' holds no questions"):
        corpus_cases(corpus, asked(tmp_path, "", " "))
