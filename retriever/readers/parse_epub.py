"""Books in EPUB to Markdown inside a child process, chapter by chapter; refuses DRM. Knows no file."""

from collections.abc import Iterator
from posixpath import dirname, join, normpath
from urllib.parse import unquote
from xml.etree.ElementTree import Element, ParseError
from zipfile import BadZipFile, ZipFile

from retriever.readers.archive import opened_archive, xml
from retriever.readers.html import decode_html
from retriever.readers.parse_html import markdown_of
from retriever.readers.reading import UnreadableFile
from retriever.readers.serve import Findings, one_line

_PACKAGE = "{http://www.idpf.org/2007/opf}"
_TERMS = "{http://purl.org/dc/elements/1.1/}"
_ROOT = ".//{urn:oasis:names:tc:opendocument:xmlns:container}rootfile"


def parse(content: bytes) -> Findings:
    """The chapters in reading order, without the book's own table of contents."""
    archive = opened_archive(content)
    if "META-INF/rights.xml" in archive.namelist():
        raise UnreadableFile("the book is protected (DRM), so only its shop's programs can read it: leave it out")
    try:
        root = xml(archive, "META-INF/container.xml").find(_ROOT)
        place = root.get("full-path", "") if root is not None else ""
        package = xml(archive, place)
    except (KeyError, ParseError, BadZipFile) as error:
        raise UnreadableFile(_broken(error)) from None
    texts: list[str] = []
    problems: list[str] = []
    for chapter in _chapters(package, dirname(place)):
        text, said = _chapter(archive, chapter)
        texts += [text] if text else []
        problems += said
    book = "\n\n".join(texts)
    title, author = (one_line(package.findtext(f".//{_TERMS}{name}", "")) for name in ("title", "creator"))
    return Findings((book,), problems, title=title, author=author)


def _chapters(package: Element, folder: str) -> Iterator[str]:
    """The names of the pages that a reader turns."""
    items = {each.get("id", ""): each for each in package.iterfind(f".//{_PACKAGE}item")}
    for each in package.iterfind(f".//{_PACKAGE}itemref"):
        item = items.get(each.get("idref", ""))
        if item is not None and "nav" not in item.get("properties", "").split():
            yield normpath(join(folder, unquote(item.get("href", ""))))


def _chapter(archive: ZipFile, name: str) -> tuple[str, list[str]]:
    try:
        text, problems = markdown_of(decode_html(archive.read(name)))
    except (UnreadableFile, KeyError, BadZipFile) as error:
        return "", [f"{one_line(name)} in it is not read: {_broken(error)}"]
    return text.strip("\n"), [f"{one_line(name)} in it: {problem}" for problem in problems]


def _broken(error: Exception) -> str:
    return f"the book is damaged ({one_line(str(error))[:200]}): save it anew"
