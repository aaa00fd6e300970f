"""PDF files: pages joined to one text that knows where each begins. The parser runs in a process of its own."""

from pathlib import PurePath

from retriever.documents import Draft, PageStart
from retriever.readers.reading import Reading, ReadingProblem
from retriever.readers.serve import Findings
from retriever.readers.worker import ask

_BETWEEN = "\n\n"


def read_pdf(name: str, content: bytes) -> Reading:
    """One draft; pages without text are left out of it and are a problem."""
    answer = ask("retriever.readers.parse_pdf", content)
    problems = tuple(ReadingProblem(name, reason) for reason in answer.problems)
    draft = _draft(answer, PurePath(name).stem)
    return Reading((draft,) if draft.text else (), problems)


def _draft(answer: Findings, stem: str) -> Draft:
    pages: list[PageStart] = []
    start = 0
    for number, text in enumerate(answer.pages, 1):
        if text:
            pages.append(PageStart(number, start))
            start += len(text) + len(_BETWEEN)
    metadata = {"author": answer.author} if answer.author else {}
    text = _BETWEEN.join(filter(None, answer.pages))
    return Draft(text, title=answer.title or stem, metadata=metadata, pages=tuple(pages))
