"""PowerPoint's slides to Markdown inside a child process, a page each. Knows no file."""

import io
from collections.abc import Iterable, Iterator

from pptx import Presentation
from pptx.exc import PackageNotFoundError
from pptx.shapes.autoshape import Shape
from pptx.shapes.base import BaseShape
from pptx.shapes.graphfrm import GraphicFrame
from pptx.shapes.group import GroupShape
from pptx.slide import Slide
from pptx.table import Table
from pptx.text.text import TextFrame

from retriever.readers.archive import opened_archive, property_of
from retriever.readers.reading import UnreadableFile
from retriever.readers.serve import Findings, clean, one_line


def parse(content: bytes) -> Findings:
    """What stands on each slide, and in its notes. Pictures are left out, and what is linked is not opened."""
    archive = opened_archive(content)
    try:
        slides = [clean(_slide(each)) for each in Presentation(io.BytesIO(content)).slides]
    except PackageNotFoundError as error:
        raise UnreadableFile(str(error)) from None
    return Findings(slides, title=property_of(archive, "title"), author=property_of(archive, "creator"))


def _slide(slide: Slide) -> str:
    title = slide.shapes.title
    heading = [f"# {one_line(title.text_frame.text)}"] if title is not None and title.text_frame.text.strip() else []
    rest = [each for each in slide.shapes if title is None or each.shape_id != title.shape_id]
    notes = slide.notes_slide.notes_text_frame if slide.has_notes_slide else None
    said = [notes.text] if notes is not None and notes.text.strip() else []
    return "\n\n".join([*heading, *_texts(rest), *said])


def _texts(shapes: Iterable[BaseShape]) -> Iterator[str]:
    for shape in shapes:
        if isinstance(shape, GroupShape):
            yield from _texts(shape.shapes)
        elif isinstance(shape, GraphicFrame) and shape.has_table:
            yield _table(shape.table)
        elif isinstance(shape, Shape) and (text := _paragraphs(shape.text_frame)):
            yield text


def _paragraphs(frame: TextFrame) -> str:
    """One paragraph as it is, several as a list by their levels."""
    told = [(each.level, one_line(each.text)) for each in frame.paragraphs if each.text.strip()]
    return told[0][1] if len(told) == 1 else "\n".join(f"{'  ' * level}- {text}" for level, text in told)


def _table(table: Table) -> str:
    rows = [[one_line(cell.text).replace("|", "\\|") for cell in row.cells] for row in table.rows]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([*lines[:1], f"|{' --- |' * len(table.columns)}", *lines[1:]])
