"""Source code to Markdown: a heading and a fence for each definition, languages by suffix; refuses generated files.

What defines something is told by its first line, as editors fold by: a word such as `class` or `fn` before a name, or,
in languages of C's kind, a name before brackets and a brace. What is not recognised stays where it stands.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePath

from retriever.documents import Draft
from retriever.readers.decode import decode
from retriever.readers.link_lists import is_licence
from retriever.readers.markdown import fenced
from retriever.readers.reading import Reading, UnreadableFile, require_text

_ENDINGS = (
    "c c h|cpp cc cpp hh hpp|csharp cs|dart dart|elixir ex exs|go go|java java|javascript js mjs|jsx jsx|julia jl"
    "|kotlin kt|lua lua|perl pl|php php|protobuf proto|python py pyi|r r|ruby rb|rust rs|scala scala|sh sh|sql sql"
    "|swift swift|typescript ts|tsx tsx"
)
LANGUAGES = {f".{ending}": row.split()[0] for row in _ENDINGS.split("|") for ending in row.split()[1:]}
_BRACED = {"c", "cpp", "csharp", "dart", "java", "javascript", "jsx", "php", "sh", "typescript", "tsx"}
_LONG_LINE = 20_000  # characters: nobody writes one
_LOOKED_AT = 300  # characters of a line
_HEAD_ROWS = 200  # in which a licence stands

_BEFORE = (
    r"(?:(?:abstract|async|data|declare|default|export|extern|final|inline|internal|local|open|override|partial|private"
    r"|protected|pub(?:\([\w:]+\))?|public|readonly|sealed|static|suspend|unsafe|virtual)\s+)*"
)
_HOLDERS = (
    "class|contract|defmodule|enum|extension|impl|interface|mixin|module|namespace|object|protocol|record|service|struct"
    "|trait"
)
_OTHERS = "def|defp|defmacro|fn|fun|func|function|macro_rules!|message|rpc|sub|type"
_NAME = r"(?P<name>[A-Za-z_~$][\w.$:!?~]*)"
_NAMED = re.compile(
    rf"\s*{_BEFORE}(?:(?P<holds>{_HOLDERS})|{_OTHERS})\b[*]?\s*(?:\([^()]*\)\s*|<[^<>]*>\s*)?(?<=[\s>*]){_NAME}"
)
_ASSIGNED = re.compile(
    r"\s*(?:export\s+)?(?:const|let|var)\s+(?P<name>[\w$]+)[^=]*=\s*(?:async\s*)?(?:function\b|\(.*=>|[\w$]+\s*=>)"
    r"|(?P<other>[A-Za-z_][\w.]*)\s*<-\s*function\b"
)
_TABLE = re.compile(
    r"create\s+(?:\w+\s+){1,4}?(?:if\s+not\s+exists\s+)?(?P<name>[\w.\"`]+)\s*(?:\(|as\b|on\b|$)", re.IGNORECASE
)
_CALLED = re.compile(rf"\s*(?:[\w$:<>,*&\[\]?@]+\s+)*?[*&]*{_NAME}\s*\([^;\"'`]*$")
_STATEMENTS = {
    *("await", "case", "catch", "delete", "do", "elif", "else", "for", "foreach", "if", "lock", "new", "return"),
    *("sizeof", "switch", "throw", "typeof", "until", "using", "while", "with", "yield"),
}
_BELONGS = re.compile(r"\s*(?:@|#|//|/\*|\*|--|\[|template\b)")  # comments and marks of what follows


@dataclass(frozen=True, slots=True)
class Definition:
    """What begins at a line, the comments right above it included, and how deep it is nested."""

    line: int
    depth: int
    name: str


def read_source(name: str, content: bytes) -> Reading:
    """One draft, which shows where each definition begins."""
    text = require_text(decode(content))
    rows = text.splitlines()
    longest = max(map(len, rows))
    if longest > _LONG_LINE:
        raise UnreadableFile(f"a line of it has {longest:,} characters, so a program wrote it: leave it out")
    rows = rows[_licence_rows(rows) :]
    language = LANGUAGES[PurePath(name).suffix.lower()]
    return Reading((Draft("\n\n".join(_sections(rows, language)), title=PurePath(name).name),))


def _sections(rows: Sequence[str], language: str) -> Iterator[str]:
    found = [Definition(0, 0, ""), *definitions(rows, language), Definition(len(rows), 0, "")]
    for each, following in pairwise(found):
        code = "\n".join(rows[each.line : following.line]).strip("\n")
        if each.name:
            yield f"{'#' * (each.depth + 2)} {each.name}"
        if code.strip():
            yield fenced(code, language)


def _licence_rows(rows: Sequence[str]) -> int:
    """How many rows the comment at the head takes that tells the licence; none where it tells something else."""
    end = 0
    while end < min(len(rows), _HEAD_ROWS) and (_BELONGS.match(rows[end]) or (end and not rows[end].strip())):
        end += 1
        if end < len(rows) and not rows[end].strip() and is_licence("\n".join(rows[:end])):
            return end
    return 0


def definitions(rows: Sequence[str], language: str) -> Iterator[Definition]:
    """Those at the outermost level, and within what holds others: a class, a module; none within a function."""
    above: list[tuple[int, str, bool]] = []  # indent, name, and whether it holds definitions
    free = 0  # the first row that is in no definition's head
    for number, row in enumerate(rows):
        told = _told(row[:_LOOKED_AT], language, opens=_opens(rows, number))
        if told is None:
            continue
        (name, holds), indent = told, len(row) - len(row.lstrip())
        while above and above[-1][0] >= indent:
            above.pop()
        if all(each[2] for each in above) and (above or not indent):
            begin = number
            while begin > free and _BELONGS.match(rows[begin - 1]):
                begin -= 1
            yield Definition(begin, min(len(above), 3), ".".join([*(each[1] for each in above), name]))
            free = number + 1
        above.append((indent, name, holds))


def _told(row: str, language: str, *, opens: bool) -> tuple[str, bool] | None:
    """The name of what the row defines, and whether others stand in it."""
    if named := _NAMED.match(row):
        return named["name"].rstrip(":"), named["holds"] is not None
    if language == "sql":
        found = _TABLE.match(row)
    elif language in _BRACED and opens and row.split(maxsplit=1)[0].rstrip("(") not in _STATEMENTS:
        found = _ASSIGNED.match(row) or _CALLED.match(row)
        found = None if found and found["name"] in _STATEMENTS else found
    else:
        found = _ASSIGNED.match(row)
    return (found["name"] or found["other"], False) if found else None


def _opens(rows: Sequence[str], number: int) -> bool:
    """Does the row, or the next one, open a brace, or brackets that go on?"""
    row, following = rows[number].rstrip(), rows[number + 1].lstrip() if number + 1 < len(rows) else ""
    return row.endswith(("{", "=>")) or following.startswith("{") or (row[:1].isalpha() and row.endswith(","))
