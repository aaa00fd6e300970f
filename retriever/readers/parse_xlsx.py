"""Excel's workbooks to Markdown inside a child process: a section each sheet, a line each row. Knows no file."""

import io
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta

from python_calamine import CalamineError, CalamineWorkbook, SheetTypeEnum

from retriever.readers.archive import opened_archive, property_of
from retriever.readers.reading import UnreadableFile
from retriever.readers.serve import Findings, clean
from retriever.readers.table_rows import table_lines

Cell = int | float | str | bool | time | date | datetime | timedelta


def parse(content: bytes) -> Findings:
    """The values of all sheets as they were last computed. No formula is, no macro runs, nothing linked is opened."""
    archive = opened_archive(content)
    try:
        with CalamineWorkbook.from_filelike(io.BytesIO(content)) as book:
            sheets = [text for text in _sheets(book) if text]
    except CalamineError as error:
        raise UnreadableFile(f"the workbook is broken ({clean(str(error))[:200]}): save it anew") from None
    text = "\n\n".join(sheets)
    return Findings((text,), title=property_of(archive, "title"), author=property_of(archive, "creator"))


def _sheets(book: CalamineWorkbook) -> Iterator[str]:
    for sheet in book.sheets_metadata:
        if sheet.typ == SheetTypeEnum.WorkSheet:
            rows = ([_text(cell) for cell in row] for row in book.get_sheet_by_name(sheet.name).iter_rows())
            if text := clean("\n".join(table_lines(rows))):
                yield f"## {clean(sheet.name)}\n\n{text}"


def _text(cell: Cell) -> str:
    if isinstance(cell, float) and cell.is_integer() and abs(cell) < 1e15:
        return str(int(cell))
    if isinstance(cell, datetime):
        return cell.isoformat(" ").removesuffix(" 00:00:00")
    return str(cell)
