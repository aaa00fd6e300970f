"""PDF pages that are pictures to text (OCR, extra `ocr`) inside a child process: resolution, limits of time.

A page takes seconds, so what is not reached in most of a parser's time is told, and what was reached is kept.
"""

# pypdfium2 and rapidocr are not typed to the end
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportArgumentType=false

import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Protocol, cast

from numpy import uint8
from numpy.typing import NDArray
from pypdfium2 import PdfBitmap, PdfDocument, PdfImage, PdfiumError, PdfPage
from pypdfium2.raw import FPDF_PAGEOBJ_IMAGE
from rapidocr import RapidOCR

from retriever.readers.reading import UnreadableFile
from retriever.readers.serve import Findings, clean

_Picture = NDArray[uint8]
SCAN_CPU_S, SCAN_WALL_S = 90.0, 220.0  # less than a parser has
_DOTS = 150 / 72  # pixels a point
_SIDE = 2000  # pixels at most
WHITE = 255
_SETTINGS = {
    "EngineConfig.onnxruntime.intra_op_num_threads": 1,
    "EngineConfig.onnxruntime.inter_op_num_threads": 1,
    "Global.log_level": "critical",
    "Global.use_cls": False,  # no line stands on its head
}


class _Lines(Protocol):
    """What was recognised: its lines, in order."""

    def __len__(self) -> int: ...
    def to_markdown(self) -> str: ...


def parse(content: bytes) -> Findings:
    """One text per page. `blank`: pages that cannot be drawn, or that time did not reach."""
    try:
        with PdfDocument(content) as document:
            found = dict(_pages(document))
            numbers = range(len(document))
    except PdfiumError as error:
        raise UnreadableFile(f"the PDF cannot be drawn ({error}): save it as a new PDF") from None
    blank = [number + 1 for number in numbers if number not in found]
    problems = ["it cannot be drawn, or reading the scan took too long: split the PDF"] if blank else []
    return Findings([found.get(number, "") for number in numbers], problems, blank=blank)


def _pages(document: PdfDocument) -> Iterator[tuple[int, str]]:
    """What stands in each page, else what its picture shows."""
    worked, started = time.process_time(), time.monotonic()
    for number in range(len(document)):
        try:
            page = document[number]
            text = page.get_textpage().get_text_bounded().strip()
            if not text:
                if time.process_time() - worked > SCAN_CPU_S or time.monotonic() - started > SCAN_WALL_S:
                    continue
                text = _scan(page)
        except PdfiumError:
            continue
        yield number, clean(text).strip()


def _scan(page: PdfPage) -> str:
    """What a page that is a picture shows, in lines and paragraphs; nothing for one of one colour.

    Raises PdfiumError where nothing is read and a picture is damaged.
    """
    scale = min(_DOTS, _SIDE / max(*page.get_size(), 1.0))
    picture = _pixels(cast(PdfBitmap, page.render(scale=scale)))
    lines = () if picture.min() == picture.max() else _recognizer()(picture)
    if len(lines):
        return cast(_Lines, lines).to_markdown()
    for image in cast(Iterator[PdfImage], page.get_objects([FPDF_PAGEOBJ_IMAGE])):
        pixels = _pixels(image.get_bitmap())
        if pixels.min() == pixels.max() < WHITE:
            raise PdfiumError("a picture is of one shade: it is damaged")
    return ""


def _pixels(bitmap: PdfBitmap) -> _Picture:
    return cast(_Picture, bitmap.to_numpy())


@cache
def _recognizer() -> Callable[[_Picture], _Lines]:
    return cast(Callable[[_Picture], _Lines], RapidOCR(params=_SETTINGS))
