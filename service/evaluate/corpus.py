"""The user's own corpus with questions alone: a word search chooses the passages of each. Knows no model, no store."""

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from service.evaluate.cases import Case, SuiteError, read_questions, read_text
from service.prompts import Titled

SUFFIXES = (".md", ".txt")
WORDS, MOST_WORDS = 100, 160  # of a passage: about, and at most

_PARAGRAPH = re.compile(r"\n\s*\n")
_SENTENCE = re.compile(r"[.!?…][\"'”’)\]]*\s+")
_SPACE = re.compile(r"\s+")
_WORD = re.compile(r"[^\W_]+")  # letters and digits only, as the index cuts words: no syntax of a query among them
_STOP = frozenset(
    _WORD.findall(
        """a about after also an and any are as at be been before but by can could did do does for from
        had has have he her him his how i if in into is it its many me much my no not of on or our s
        she should so some t than that the their them then there these they this those to was we
        were what when where which who whom whose why will with would you your"""
    )
)


@dataclass(frozen=True, slots=True)
class _Passage:
    """`document` counts the files in their order."""

    document: int
    shown: Titled


def corpus_cases(corpus: Path, questions: Path, *, top_k: int = 5) -> list[Case]:
    """Every question with the passages that fit it best. `corpus` is a text or a folder of texts.

    The documents stand in the order of their best passages, the passages of one document in its own order.
    """
    if top_k < 1:
        raise SuiteError(f"a question needs at least one passage, got top_k {top_k}")
    asked = read_questions(questions)
    passages = list(_passages(corpus))
    if not passages:
        raise SuiteError(
            f"the corpus {str(corpus)!r} holds no text: fill a {' or '.join(SUFFIXES)} file with documents"
        )
    with closing(_index(passages)) as index:
        return [replace(case, passages=_found(index, passages, question=case.question, top_k=top_k)) for case in asked]


def _passages(corpus: Path) -> Iterator[_Passage]:
    for number, path in enumerate(_files(corpus)):
        for text in _cut(read_text(path)):
            yield _Passage(number, Titled(text, path.stem))


def _files(corpus: Path) -> list[Path]:
    if not corpus.exists():
        raise SuiteError(f"the corpus {str(corpus)!r} does not exist: name a text file or a folder")
    if not corpus.is_dir():
        return [corpus]
    return sorted(path for path in corpus.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())


def _cut(text: str) -> Iterator[str]:
    """Passages that hold all of the text but the white space between them; none is empty."""
    held: list[str] = []
    words = 0
    for piece in _pieces(text):
        more = _count(piece)
        if words + more > MOST_WORDS or abs(words + more - WORDS) > abs(words - WORDS):
            yield "".join(held).strip()
            held, words = [], 0
        held.append(piece)
        words += more
    if words:
        yield "".join(held).strip()


def _pieces(text: str) -> Iterator[str]:
    """Paragraphs, or sentences of a long paragraph, or words of a long sentence; joined they are the text."""
    for paragraph in _parts(text, _PARAGRAPH):
        for sentence in _parts(paragraph, _SENTENCE) if _count(paragraph) > MOST_WORDS else [paragraph]:
            yield from _parts(sentence, _SPACE) if _count(sentence) > MOST_WORDS else [sentence]


def _parts(text: str, border: re.Pattern[str]) -> Iterator[str]:
    """Each with the border that ends it."""
    start = 0
    for found in border.finditer(text):
        yield text[start : found.end()]
        start = found.end()
    yield text[start:]


def _count(text: str) -> int:
    return len(text.split())


def _index(passages: Sequence[_Passage]) -> sqlite3.Connection:
    index = sqlite3.connect(":memory:")
    index.execute("CREATE VIRTUAL TABLE passages USING fts5(text, title, tokenize='porter unicode61')")
    rows = ((number, each.shown.text, each.shown.title) for number, each in enumerate(passages))
    index.executemany("INSERT INTO passages (rowid, text, title) VALUES (?, ?, ?)", rows)
    return index


def _found(index: sqlite3.Connection, passages: Sequence[_Passage], *, question: str, top_k: int) -> tuple[Titled, ...]:
    """Where nothing fits, the first passages of the corpus."""
    select = "SELECT rowid FROM passages WHERE passages MATCH ? ORDER BY bm25(passages), rowid LIMIT ?"
    ranked: list[int] = [row for (row,) in index.execute(select, (_query(question), top_k))]
    chosen = ranked or list(range(min(top_k, len(passages))))
    best = {passages[row].document: place for place, row in reversed(list(enumerate(chosen)))}
    return tuple(passages[row].shown for row in sorted(chosen, key=lambda row: (best[passages[row].document], row)))


def _query(question: str) -> str:
    """Any of the question's words; a word in quotes is never an operator."""
    words = list(dict.fromkeys(_WORD.findall(question.lower())))
    telling = [word for word in words if word not in _STOP] or words
    return " OR ".join(f'"{word}"' for word in telling) or '""'
