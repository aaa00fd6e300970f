"""Reads PDF: the text of its pages, and of those that are pictures where the extra `ocr` is installed."""

from dataclasses import replace
from importlib.util import find_spec

from retriever.readers.parsed import asked, paged
from retriever.readers.reading import Reading, UnreadableFile
from retriever.readers.serve import Findings, ranges


def read_pdf(name: str, content: bytes) -> Reading:
    """One draft that knows where its pages begin. A picture that nobody reads is a problem beside the other pages."""
    found = asked("parse_pdf", content)
    return paged(name, _with_scans(found, content) if found.blank else found)


def _with_scans(found: Findings, content: bytes) -> Findings:
    scanned = _scanned(content)
    pages, known = list(found.pages), dict(enumerate(scanned.pages, 1))
    for number in found.blank:
        pages[number - 1] = known.get(number, "")
    if left := [number for number in found.blank if number not in known or number in scanned.blank]:
        reason = f"page {ranges(left)} of {len(pages)} has no text: {scanned.problems[0]}"
        return replace(found, pages=pages, problems=[*found.problems, reason])
    return replace(found, pages=pages)


def _scanned(content: bytes) -> Findings:
    """What the pages show, or why nobody looked."""
    if find_spec("rapidocr") is None:
        reason = "if it is a scan, pip install 'kvweave[ocr]' reads it; else run text recognition (OCR) first"
        return Findings(problems=[reason])
    try:
        return asked("parse_scan", content)
    except UnreadableFile as error:
        return Findings(problems=[f"reading it as a scan failed, as {error}"])
