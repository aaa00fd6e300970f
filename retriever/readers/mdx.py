"""MDX, Markdown with components: what is code of the page goes, what is for readers stays. Renders nothing."""

import re

from retriever.readers.decode import decode
from retriever.readers.fences import Fences
from retriever.readers.markdown import read_markdown
from retriever.readers.reading import Reading

_MODULE = re.compile(
    r"import\s*(?:[\"'{*]|[\w$]+\s*(?:,\s*[{*]|from\s*[\"']))"
    r"|export\s+(?:default|const|let|var|(?:async\s+)?function|class)\b|export\s*[{*]"
)
_TAG = re.compile(r"\s*</?(?:[A-Z][\w.]*)?(?:\s+[\w:-]+(?:=(?:\"[^\"\s]*\"|'[^'\s]*'|\{[^{}\"'`]*\}))?)*\s*/?>\s*")


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
