"""PDF to the texts of its pages inside a child process; tells passwords, broken pages, and pages without text."""

import io
import struct
import zlib
from collections.abc import Iterator, Sequence

from pypdf import PasswordType, PdfReader
from pypdf.errors import DependencyError, DeprecationError, PyPdfError

from retriever.readers.serve import Findings, clean, one_line, ranges

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
    """One text per page, empty where a page has none: it may be a picture. Pages that cannot be read are problems."""
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
    blank = [number for number, page in enumerate(pages, 1) if page == ""]
    title, author = (_entry(reader, key) for key in ("/Title", "/Author"))
    return Findings(texts, list(_problems(pages)), blank=blank, title=title, author=author)


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
    broken = {number: page for number, page in enumerate(pages, 1) if isinstance(page, Exception)}
    if broken:
        first = next(iter(broken.values()))
        yield f"page {ranges(list(broken))} of {len(pages)} is broken ({_named(first)}): save it as a new PDF"


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {clean(str(error))[:200]}".rstrip(": ")


def _entry(reader: PdfReader, key: str) -> str:
    try:
        known = reader.metadata
        return one_line(str(known[key])) if known is not None and key in known else ""
    except _BROKEN:
        return ""
