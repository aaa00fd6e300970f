"""Pages that are pictures are read off, beside those that have text, within the limits that every parser has."""

import zlib
from collections.abc import Sequence

import pytest
from fpdf import FPDF
from PIL import Image, ImageDraw, ImageFont

from retriever.documents import PageStart
from retriever.readers import parse_scan
from retriever.readers.files import read
from tests.retriever.test_files import encrypted, refused
from tests.retriever.test_readers_hostile import bomb, raw_pdf, stream

LETTER = ("The retention period of audit logs is ninety days.", "Invoice 2031-77 was paid on 3 March: 1,299.50 EUR.")


def picture(lines: Sequence[str], *, size: tuple[int, int] = (1240, 500)) -> Image.Image:
    drawn = Image.new("L", size, 255)
    for number, line in enumerate(lines):
        ImageDraw.Draw(drawn).text((100, 100 + 80 * number), line, font=ImageFont.load_default(34), fill=30)
    return drawn


def scanned(*pages: str | Image.Image | None) -> bytes:
    """A page each: its text, its picture, or nothing."""
    written = FPDF()
    written.set_font("helvetica", size=12)
    for page in pages:
        written.add_page()
        if isinstance(page, str):
            written.multi_cell(0, 8, page)
        elif page is not None:
            written.image(page, x=0, y=20, w=210)
    return bytes(written.output())


def test_a_scan_among_pages_of_text_is_read_where_it_stands() -> None:
    reading = read("a.pdf", encrypted(scanned("First.", picture(LETTER), None, "Last."), ""))
    (draft,) = reading.drafts
    assert reading.problems == ()
    assert draft.text == "First.\n\n{}\n{}\n\nLast.".format(*LETTER)
    starts = [(1, "First"), (2, "The"), (4, "Last")]
    assert draft.pages == tuple(PageStart(number, draft.text.index(text)) for number, text in starts)


def test_a_damaged_picture_that_is_drawn_as_nothing_is_named_and_an_empty_page_is_not() -> None:
    content = scanned("First.", picture(LETTER), None)
    start = content.index(b"stream", content.index(b"/Subtype /Image")) + len(b"stream\n")
    end = content.index(b"endstream", start)
    reading = read("a.pdf", content[:start] + bytes(end - start) + content[end:])
    assert [draft.text for draft in reading.drafts] == ["First."]
    [problem] = reading.problems
    assert problem.reason.startswith("page 2 of 3 has no text: it cannot be drawn")


def test_what_time_did_not_reach_is_told_and_the_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parse_scan, "SCAN_CPU_S", 0)
    found = parse_scan.parse(scanned("First.", picture(LETTER)))
    assert (found.pages, found.blank) == (["First.", ""], [2])
    assert "split" in found.problems[0]


def drawn(image: bytes, *, width: int, height: int) -> bytes:
    """A page that is filled by a picture of so many gray pixels."""
    used = b"/Contents 4 0 R /Resources << /XObject << /I 5 0 R >> >>"
    shape = b"/Type /XObject /Subtype /Image /ColorSpace /DeviceGray /BitsPerComponent 8"
    head = b"<< %s /Width %d /Height %d" % (shape, width, height)
    return raw_pdf(
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] %s >>" % used,
        stream(zlib.compress(b"q 600 0 0 800 0 0 cm /I Do Q")),
        stream(image).replace(b"<<", head, 1),
    )


def test_a_picture_is_bounded_by_its_parser() -> None:
    """What is drawn has the size of a page, and a picture that takes more than the parser may is told."""
    lines = picture(LETTER, size=(1240, 1653))
    assert LETTER[0] in read("a.pdf", drawn(zlib.compress(lines.tobytes()), width=1240, height=1653)).drafts[0].text
    for side, packed in ((40_000, bomb(2)), (2_000_000_000, b"x"), (3000, b"x")):
        assert refused("a.pdf", drawn(packed, width=side, height=side))
