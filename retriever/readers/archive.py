"""Opens the zip that an office file or book is; refuses passwords, older formats, too many parts, too much unpacked."""

import io
from xml.etree import ElementTree
from xml.etree.ElementTree import Element
from zipfile import BadZipFile, ZipFile

from retriever.readers.reading import MAX_BYTES, UnreadableFile, megabytes
from retriever.readers.serve import one_line

MAX_MEMBERS = 100_000
_COMPOUND = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"  # the older binary formats, and what a password protects
_TERMS = "{http://purl.org/dc/elements/1.1/}"


def opened_archive(content: bytes) -> ZipFile:
    """The archive. No member gives more bytes than it declares, so that what they declare bounds all.

    Raises `UnreadableFile` where it is none.
    """
    if content.startswith(_COMPOUND):
        raise UnreadableFile("it has a password or is of an older binary format: save a copy in the newer one without")
    try:
        archive = ZipFile(io.BytesIO(content))
    except (BadZipFile, NotImplementedError, ValueError) as error:
        raise UnreadableFile(
            f"it is damaged or of another format ({one_line(str(error))[:200]}): save it anew"
        ) from None
    members = archive.infolist()
    if len(members) > MAX_MEMBERS:
        raise UnreadableFile(f"it holds {len(members):,} parts, at most {MAX_MEMBERS:,}: split it")
    unpacked = sum(each.file_size for each in members)
    if unpacked > MAX_BYTES:
        raise UnreadableFile(f"unpacked it has {megabytes(unpacked)}, at most {megabytes(MAX_BYTES)}: split it")
    return archive


def xml(archive: ZipFile, name: str) -> Element:
    """A member's tree. Entities that a document declares are expanded within expat's bounds, none is fetched."""
    return ElementTree.fromstring(archive.read(name))


def property_of(archive: ZipFile, name: str) -> str:
    """What the document says of itself: its `title` or `creator`, or nothing."""
    try:
        return one_line(xml(archive, "docProps/core.xml").findtext(f"{_TERMS}{name}", ""))
    except (KeyError, BadZipFile, ElementTree.ParseError):
        return ""
