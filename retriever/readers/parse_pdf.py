"""PDF to the texts of its pages inside a child process. Knows no file."""

import io
import struct
import zlib
from collections.abc import Iterator, Sequence

from pypdf import PasswordType, PdfReader
from pypdf.errors import DependencyError, DeprecationError, PyPdfError

from retriever.readers.serve import Findings, clean, one_line

# What a mangled file makes pypdf raise: its own errors are documented not to be all. MemoryError ends the parser.
_BROKEN = (
    PyPdfError,
    DeprecationError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
    zlib.error,
)


def parse(content: bytes) -> Findings:
    """One text per page, empty where a page has none; pages that cannot be read are problems."""
    try:
        reader = PdfReader(io.BytesIO(content))
        if reader.is_encrypted and reader.decrypt("") == PasswordType.NOT_DECRYPTED:
            return Findings(problems=["the PDF is encrypted with a password: save a copy without one"])
        pages = list(_pages(reader, len(reader.pages)))
    except DependencyError as error:
        return Findings(problems=[f"the PDF needs what is not installed ({error}): pip install 'kvweave[readers]'"])
    except _BROKEN as error:
        return Findings(problems=[f"the PDF is broken ({_named(error)}): print or save it as a new PDF"])
    texts = [page if isinstance(page, str) else "" for page in pages]
    return Findings(texts, list(_problems(pages)), title=_entry(reader, "/Title"), author=_entry(reader, "/Author"))


def _pages(reader: PdfReader, count: int) -> Iterator[str | Exception]:
    """The text of every page, or the error that prevented it."""
    for number in range(count):
        try:
            yield clean(reader.pages[number].extract_text()).strip()
        except _BROKEN as error:
            yield error


def _problems(pages: Sequence[str | Exception]) -> Iterator[str]:
    if not pages:
        yield "the PDF has no pages: print or save it as a new PDF"
        return
    blank = [number for number, page in enumerate(pages, 1) if page == ""]
    broken = {number: page for number, page in enumerate(pages, 1) if isinstance(page, Exception)}
    if len(blank) == len(pages):
        yield "none of its pages has text, so it is probably scanned: run it through text recognition (OCR) first"
    elif blank:
        yield f"page {_ranges(blank)} of {len(pages)} has no text: if it is scanned, run text recognition (OCR) first"
    if broken:
        first = next(iter(broken.values()))
        yield f"page {_ranges(list(broken))} of {len(pages)} is broken ({_named(first)}): save it as a new PDF"


def _ranges(numbers: Sequence[int]) -> str:
    """Writes page numbers as ranges: 1, 3-5, 9."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {clean(str(error))[:200]}".rstrip(": ")


def _entry(reader: PdfReader, key: str) -> str:
    try:
        known = reader.metadata
        return one_line(str(known[key])) if known is not None and key in known else ""
    except _BROKEN:
        return ""
