# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
"""Word's documents to Markdown inside a child process: mammoth makes HTML of them. Knows no file."""

import io
from typing import cast

import mammoth

from retriever.readers.archive import opened_archive, property_of
from retriever.readers.parse_html import markdown_of
from retriever.readers.serve import Findings

_STYLES = r"""
p[style-name='Title'] => h1:fresh
p[style-name='Source Code'] => pre:separator('\n')
p[style-name='Preformatted Text'] => pre:separator('\n')
"""


def parse(content: bytes) -> Findings:
    """The text with headings, lists, tables and notes; pictures are left out, and what is linked is not opened."""
    archive = opened_archive(content)
    converted = mammoth.convert_to_html(io.BytesIO(content), style_map=_STYLES, convert_image=_left_out)
    text, problems = markdown_of(cast(str, converted.value))
    return Findings((text,), problems, property_of(archive, "title"), property_of(archive, "creator"))


def _left_out(_: object) -> list[object]:
    return []
