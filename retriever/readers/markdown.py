"""Markdown and MDX: title, front matter as metadata; lists of links, licences and a page's code are left out.

MDX is Markdown with components: what is code of the page goes, what is for readers stays. Nothing is rendered.
"""

import re
from collections.abc import Iterator
from pathlib import PurePath

import msgspec

from retriever.documents import Draft
from retriever.readers.decode import decode
from retriever.readers.fences import Fences
from retriever.readers.link_lists import is_licence, without_link_lists
from retriever.readers.reading import MAX_TITLE, Reading, require_text

_TITLE_WITHIN = 1 << 18  # characters
_FRONT_WITHIN = 1 << 14
_MAX_TITLE = 300

_FRONT = re.compile(r"---[ \t]*\r?\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
_ENTRY = re.compile(r"([A-Za-z_][\w.-]*)[ \t]*:[ \t]+(\S.*)")
_TICKS = re.compile(r"`{3,}")
_ATX = re.compile(r" {0,3}#(?:[ \t]+(\S.*))?$")
_CLOSING = re.compile(r"(?:^|[ \t])#+$")
_UNDERLINE = re.compile(r" {0,3}=+[ \t]*$")

_TARGET = r"(?:\([^()\s]*(?:\s+\"[^\"\n]*\")?\)|\[[^\[\]]*\])"
_LINK = re.compile(
    rf"\[(?:!\[([^\[\]]*)\]{_TARGET}|([^\[\]]*))\]{_TARGET}|!\[([^\[\]]*)\]{_TARGET}"
    r"|(<?https?://[^\s<>|]+>?)"
)
_DEFINED = re.compile(r"^ {0,3}(\[[^\]\n]+\]):[ \t]*\S.*$", re.MULTILINE)  # where links of the text lead
_COMMENT = re.compile(r"\s*<!--((?:[^-]|-(?!->))*+)-->\s*")

_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})")
_DECIMAL = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})\.[0-9]{1,17}(?:[eE][-+]?[0-9]{1,2})?")
_ITEM = re.compile(r"""\s*+("(?:[^"\\]|\\.)*+"|'(?:[^']|'')*+'|[^,"'\[\]]++)\s*+(?:,|$)""")
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None, "~": None}
_SYNTAX = tuple("{}[]&*!|>%@`#,?-:\"'")  # a plain value beginning so means more than it says

# Of MDX
_MODULE = re.compile(
    r"import\s*(?:[\"'{*]|[\w$]+\s*(?:,\s*[{*]|from\s*[\"']))"
    r"|export\s+(?:default|const|let|var|(?:async\s+)?function|class)\b|export\s*[{*]"
)
_TAG = re.compile(r"\s*</?(?:[A-Z][\w.]*)?(?:\s+[\w:-]+(?:=(?:\"[^\"\s]*\"|'[^'\s]*'|\{[^{}\"'`]*\}))?)*\s*/?>\s*")


class _NotSimple(ValueError):
    """Front matter that only a YAML parser can read."""


def read_markdown(name: str, content: bytes) -> Reading:
    """One draft. Its title: the first heading of level 1, else the front matter's, else the file's name."""
    text, metadata = _split_front(decode(content))
    comment = _COMMENT.match(text)
    text = text[comment.end() :] if comment and is_licence(comment[1]) else text
    kept = without_link_lists(without_link_lists(text, _DEFINED), _LINK)
    text = text if kept == text or not kept.strip() else kept.lstrip("\r\n")
    named = metadata.get("title")
    title = find_title(text) or (named[:MAX_TITLE] if isinstance(named, str) else "") or PurePath(name).stem
    return Reading((Draft(require_text(text), title=title, metadata=metadata),))


def find_title(text: str) -> str:
    """The first heading of level 1 near the beginning, or nothing. What stands in fences is no heading."""
    before, fences = "", Fences()
    for line in _lines(text[:_TITLE_WITHIN]):
        if fences.holds(line):
            before = ""
        elif heading := _ATX.match(line):
            title = _CLOSING.sub("", (heading[1] or "").rstrip()).strip()
            if title:
                return title[:_MAX_TITLE]
        elif before and _UNDERLINE.match(line):
            return before[:_MAX_TITLE]
        else:
            before = "" if line.lstrip().startswith(("#", ">")) else line.strip()
    return ""


def fenced(text: str, language: str) -> str:
    """The text as a block of code, behind a fence that is longer than any in it."""
    ticks = "`" * max([3, *(len(each) + 1 for each in _TICKS.findall(text))])
    return f"{ticks}{language}\n{text.rstrip()}\n{ticks}"


def _lines(text: str) -> Iterator[str]:
    return (line.removesuffix("\r") for line in text.split("\n"))


def _split_front(text: str) -> tuple[str, dict[str, object]]:
    """The text behind its front matter, and what that says; all of the text where it is not simple."""
    front = _FRONT.match(text[:_FRONT_WITHIN])
    if front is None:
        return text, {}
    metadata: dict[str, object] = {}
    try:
        for line in _lines(front[1]):
            if line.strip() and not line.startswith("#"):
                key, value = _entry(line)
                if key in metadata:
                    raise _NotSimple(key)
                metadata[key] = value
    except _NotSimple:
        return text, {}
    return text[front.end() :], metadata


def _entry(line: str) -> tuple[str, object]:
    found = _ENTRY.fullmatch(line.rstrip())
    if found is None:
        raise _NotSimple(line)
    key, value = found.groups()
    if value.startswith("[") and value.endswith("]"):
        return key, _items(value[1:-1])
    return key, _scalar(value)


def _items(text: str) -> list[object]:
    items: list[object] = []
    at = 0
    while text[at:].strip():
        item = _ITEM.match(text, at)
        if item is None:
            raise _NotSimple(text)
        items.append(_scalar(item[1].strip()))
        at = item.end()
    return items


def _scalar(value: str) -> object:
    if len(value) > 1 and value[0] == value[-1] == '"':
        return _quoted(value)
    if len(value) > 1 and value[0] == value[-1] == "'" and "'" not in value[1:-1].replace("''", ""):
        return value[1:-1].replace("''", "'")
    if value.lower() in _WORDS:
        return _WORDS[value.lower()]
    if _INTEGER.fullmatch(value):
        return int(value)
    if _DECIMAL.fullmatch(value):
        return float(value)
    if not value or value.startswith(_SYNTAX) or ": " in value or " #" in value or value.endswith(":"):
        raise _NotSimple(value)
    return value


def _quoted(value: str) -> str:
    try:
        return msgspec.json.decode(value, type=str)
    except msgspec.DecodeError:
        raise _NotSimple(value) from None


def read_mdx(name: str, content: bytes) -> Reading:
    """One draft, read like Markdown, without imports, exports, comments, and tags that are alone and wordless."""
    return read_markdown(name, _prose(decode(content)).encode("utf-8"))


def _prose(text: str) -> str:
    kept: list[str] = []
    fences = Fences()
    in_module = False  # which goes on to the next blank line
    for line in _uncommented(text).split("\n"):
        in_fence = not in_module and fences.holds(line)
        in_module = not fences.mark and bool(line.strip()) and (in_module or _MODULE.match(line) is not None)
        if not in_module and (in_fence or not _TAG.fullmatch(line)):
            kept.append(line)
    return "\n".join(kept)


def _uncommented(text: str) -> str:
    kept: list[str] = []
    at = 0
    while (start := text.find("{/*", at)) >= 0 and (end := text.find("*/}", start)) >= 0:
        kept.append(text[at:start])
        at = end + 3
    return "".join([*kept, text[at:]])
