"""Jupyter's notebooks to Markdown inside a child process: cells, and what they printed. Knows no file."""

import re
from collections.abc import Iterator

import msgspec

from retriever.readers.markdown import fenced
from retriever.readers.reading import UnreadableFile
from retriever.readers.serve import Findings, clean

_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

_Text = str | list[str] | None


class _Output(msgspec.Struct, frozen=True):
    text: _Text = ""
    data: dict[str, msgspec.Raw] = {}
    traceback: list[str] = []


class _Cell(msgspec.Struct, frozen=True):
    cell_type: str
    source: _Text = ""
    input: _Text = ""  # of versions before 4
    outputs: list[_Output] = []


class _Sheet(msgspec.Struct, frozen=True):
    cells: list[_Cell] = []


class _Language(msgspec.Struct, frozen=True):
    name: str = ""


class _About(msgspec.Struct, frozen=True):
    language_info: _Language | None = None


class _Notebook(_Sheet, frozen=True):
    worksheets: list[_Sheet] = []
    metadata: _About = _About()


def parse(content: bytes) -> Findings:
    """Texts as they are, code and what it printed in fences. Pictures are left out, nothing is run."""
    try:
        book = msgspec.json.decode(content.removeprefix(b"\xef\xbb\xbf"), type=_Notebook)
    except msgspec.DecodeError as error:
        raise UnreadableFile(f"it is no notebook ({error}): save it from Jupyter anew") from None
    cells = [*book.cells, *(cell for sheet in book.worksheets for cell in sheet.cells)]
    about = book.metadata.language_info
    told = [part for cell in cells for part in _parts(cell, about.name if about else "")]
    return Findings((clean("\n\n".join(told)),))


def _parts(cell: _Cell, language: str) -> Iterator[str]:
    source = _joined(cell.source or cell.input)
    if cell.cell_type != "code":
        if source.strip():
            yield source
        return
    if source.strip():
        yield fenced(source, language)
    for output in cell.outputs:
        said = _joined(output.text) or _plain(output) or "\n".join(output.traceback)
        if said.strip():
            yield fenced(_COLOURS.sub("", said), "")


def _plain(output: _Output) -> str:
    raw = output.data.get("text/plain")
    return _joined(msgspec.json.decode(raw, type=_Text)) if raw else ""


def _joined(text: _Text) -> str:
    return text if isinstance(text, str) else "".join(text or ())
