"""The user's own corpus with questions alone: a search by words chooses the passages of each. Knows no model."""

import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from retriever.catalog.sqlite import SqliteCatalog
from retriever.chunking.count import count_words
from retriever.documents import Document
from retriever.library import Library
from retriever.readers.files import read_all
from retriever.readers.reading import ReadingProblem
from retriever.search import Query, in_prompt_order
from service.documents.drafts import cut_draft
from service.lab.questions.cases import Case, SuiteError, read_questions
from service.model.prompt_builder import PromptPassage

TOKENS = 160  # words of a chunk
_COLLECTION = "eval"


def corpus_cases(
    corpus: Path, questions: Path, *, top_k: int = 5, on_skipped: Callable[[Path], None] = lambda path: None
) -> tuple[list[Case], list[ReadingProblem]]:
    """Every question with the passages that fit it best, in prompt order, and what could not be read.

    Where nothing fits a question, it gets the first passages of the corpus.
    """
    asked = read_questions(questions)
    documents, problems = read_corpus(corpus, on_skipped=on_skipped)
    with tempfile.TemporaryDirectory() as folder, closing(SqliteCatalog(Path(folder) / "catalog.sqlite")) as catalog:
        library = Library(catalog, Path(folder))
        library.put(documents, collection=_COLLECTION)
        first = [PromptPassage(part.text.strip(), each.title) for each in documents for part in each.parts][:top_k]
        found = [_found(library, case.question, top_k=top_k) or tuple(first) for case in asked]
    return [replace(case, passages=passages) for case, passages in zip(asked, found, strict=True)], problems


def read_corpus(
    corpus: Path, *, on_skipped: Callable[[Path], None] = lambda path: None
) -> tuple[list[Document], list[ReadingProblem]]:
    """The documents of a file or a folder of files, cut, and what could not be read."""
    if not corpus.exists():
        raise SuiteError(f"the corpus {str(corpus)!r} does not exist: name a file or a folder")
    readings = list(read_all([corpus], on_skipped))
    problems = [problem for _, reading in readings for problem in reading.problems]
    drafts = [draft for _, reading in readings for draft in reading.drafts]
    if not drafts:
        reasons = (
            "; ".join(f"{problem.place}: {problem.reason}" for problem in problems) or "it has no files of documents"
        )
        raise SuiteError(f"the corpus {str(corpus)!r} holds no text: {reasons}")
    return [cut_draft(each, f"{at:09}", tokens=TOKENS, count=count_words) for at, each in enumerate(drafts)], problems


def _found(library: Library, question: str, *, top_k: int) -> tuple[PromptPassage, ...]:
    hits = in_prompt_order(library.search(Query(question, top_k)))
    return tuple(PromptPassage(hit.passage.text.strip(), hit.passage.title) for hit in hits)
