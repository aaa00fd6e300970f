"""What isolated parsers find becomes one draft: its title, author and pages; no text is a problem. Knows no format."""

from pathlib import PurePath

from retriever.documents import Draft, PageStart
from retriever.readers.decode import decode
from retriever.readers.markdown import find_title
from retriever.readers.reading import MAX_TITLE, Reading, ReadingProblem
from retriever.readers.serve import Findings
from retriever.readers.worker import ask

_BETWEEN = "\n\n"


def read_parsed(name: str, content: bytes, *, parser: str) -> Reading:
    """One draft of all pages, whose borders nobody asks for."""
    answer = asked(parser, content)
    return _reading(name, answer, text=_joined(answer).strip("\n"))


def read_text(name: str, content: bytes, *, parser: str) -> Reading:
    """One draft of a text in any encoding, which the parser gets as UTF-8."""
    return read_parsed(name, decode(content).encode("utf-8"), parser=parser)


def read_pages(name: str, content: bytes, *, parser: str) -> Reading:
    """One draft that knows where its pages begin; those without text are left out of it."""
    return paged(name, asked(parser, content))


def paged(name: str, answer: Findings) -> Reading:
    """What a parser of pages found, as one draft."""
    pages: list[PageStart] = []
    start = 0
    for number, text in enumerate(answer.pages, 1):
        if text:
            pages.append(PageStart(number, start))
            start += len(text) + len(_BETWEEN)
    return _reading(name, answer, text=_joined(answer), pages=tuple(pages))


def asked(parser: str, content: bytes) -> Findings:
    """What the module of this name finds. Raises `UnreadableFile`."""
    return ask(f"{__package__}.{parser}", content)


def _joined(answer: Findings) -> str:
    return _BETWEEN.join(filter(None, answer.pages))


def _reading(name: str, answer: Findings, *, text: str, pages: tuple[PageStart, ...] = ()) -> Reading:
    problems = tuple(ReadingProblem(name, reason) for reason in answer.problems)
    if text and not text.isspace():
        title = answer.title[:MAX_TITLE] or find_title(text) or PurePath(name).stem
        metadata = {"author": answer.author} if answer.author else {}
        return Reading((Draft(text, title=title, metadata=metadata, pages=pages),), problems)
    return Reading((), problems or (ReadingProblem(name, "it has no text: leave it out, or fill it"),))
