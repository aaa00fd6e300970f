"""HTML files: their character set. The parser runs in a process of its own."""

import re

from retriever.readers.decode import decode
from retriever.readers.parsed import read_parsed
from retriever.readers.reading import Reading

_DECLARED_WITHIN = 4096
_CHARSET = re.compile(
    rb"""<(?:meta\s[^>]{0,200}?charset|\?xml\s[^>]{0,200}?encoding)\s*=\s*["']?([A-Za-z0-9_:.-]{1,40})""", re.IGNORECASE
)


def read_html(name: str, content: bytes) -> Reading:
    """One draft in Markdown: headings, lists, tables and code keep their form, links are their text."""
    return read_parsed(name, decode_html(content).encode("utf-8"), parser="parse_html")


def decode_html(content: bytes) -> str:
    """The page by the character set that it declares, or that it is written in."""
    declared = _CHARSET.search(content[:_DECLARED_WITHIN])
    return decode(content, declared=declared[1].decode() if declared else "")
