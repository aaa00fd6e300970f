"""Office files, books, tables and mails made to hurt: bombs, entities, many sheets, other hosts' names, macros."""

import io
import re
import socket
import struct
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Thread

import pytest

from retriever.readers import worker
from retriever.readers.files import read
from retriever.readers.reading import Reading
from tests.retriever.test_readers_hostile import bounded, reason

MADE = Path(__file__).parent / "made"
MAIN = {
    "pandoc.docx": "word/document.xml",
    "pandoc.pptx": "ppt/slides/slide1.xml",
    "libreoffice.xlsx": "xl/worksheets/sheet1.xml",
    "pandoc.epub": "EPUB/text/ch001.xhtml",
}
__all__ = ["bounded"]


def changed(name: str, parts: Mapping[str, bytes]) -> bytes:
    """The made file with other or more parts."""
    output = io.BytesIO()
    with (
        zipfile.ZipFile(MADE / name) as made,
        zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
    ):
        for each in made.namelist():
            archive.writestr(each, parts.get(each, made.read(each)))
        for each in parts.keys() - set(made.namelist()):
            archive.writestr(each, parts[each])
    return output.getvalue()


def part(name: str, main: str) -> bytes:
    with zipfile.ZipFile(MADE / name) as made:
        return made.read(main)


def entities(xml: bytes, declared: bytes) -> bytes:
    """The document with declarations, and with the entity `x` where its first text stands."""
    declaration, found, rest = xml.partition(b"?>")
    body = (
        declaration + found + b"<!DOCTYPE r [" + declared + b"]>" + rest
        if found
        else b"<!DOCTYPE r [" + declared + b"]>" + xml
    )
    at = body.rindex(b"</")
    return body[:at] + b"&x;" + body[at:]


LAUGHS = b'<!ENTITY a "ha">' + b"".join(
    b'<!ENTITY %c "%s">' % (97 + n, b"&%c;" % (96 + n) * 10) for n in range(1, 20)
) + b'<!ENTITY x "&t;">'  # fmt: skip


def declaring(told: int, name: str, *, held: int) -> bytes:
    """The made file with a part of zeros, of which its directory says another size."""
    packed = changed(name, {MAIN[name]: bytes(held)})
    return packed.replace(struct.pack("<I", held), struct.pack("<I", told))


@pytest.mark.parametrize("name", MAIN)
@pytest.mark.usefixtures("bounded")
def test_a_bomb_is_refused_by_what_it_declares(name: str) -> None:
    assert "at most 512 MiB" in reason(name, declaring(600 << 20, name, held=1_000_003))


@pytest.mark.parametrize("name", ["pandoc.docx", "libreoffice.xlsx"])
@pytest.mark.usefixtures("bounded")
def test_a_bomb_that_declares_less_than_it_holds_stays_within_that(name: str) -> None:
    assert problems(read(name, declaring(1000, name, held=64 << 20)))


def problems(reading: Reading) -> list[str]:
    return [each.reason for each in reading.problems]


@pytest.mark.parametrize("name", MAIN)
@pytest.mark.usefixtures("bounded")
def test_entities_expand_within_bounds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "CPU_S", 2)
    reading = read(name, changed(name, {MAIN[name]: entities(part(name, MAIN[name]), LAUGHS)}))
    assert reading.drafts or reading.problems
    assert all(len(draft.text) < 100_000 for draft in reading.drafts)


@pytest.mark.parametrize("name", MAIN)
@pytest.mark.usefixtures("bounded")
def test_an_abyss_is_a_problem_or_no_text(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "CPU_S", 2)
    main = part(name, MAIN[name])
    at = main.rindex(b"</")
    reading = read(name, changed(name, {MAIN[name]: main[:at] + b"<a>" * 300_000 + b"</a>" * 300_000 + main[at:]}))
    assert reading.drafts or reading.problems


@pytest.fixture
def listener() -> Iterator[tuple[str, list[object]]]:
    """A server on loopback, and who came to it."""
    came: list[object] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def wait() -> None:
            while True:
                try:
                    connection, address = server.accept()
                except OSError:
                    return
                came.append(address)
                connection.close()

        Thread(target=wait, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", came
        server.shutdown(socket.SHUT_RDWR)


def test_nothing_that_a_file_names_is_fetched_or_run(listener: tuple[str, list[object]]) -> None:
    url, came = listener
    host = url.encode()
    outside = b'<!ENTITY x SYSTEM "%s/x"><!ENTITY %% y SYSTEM "%s/y">%%y;' % (host, host)
    kind = b"http://schemas.openxmlformats.org/officeDocument/2006/relationships/%s"
    template = b'<Relationship Id="rId99" Type="%s" Target="%s/t" TargetMode="External"/></Relationships>'
    for name, main in MAIN.items():
        relations = {
            each: part(name, each).replace(b"</Relationships>", template % (kind % which, host))
            for each in zipfile.ZipFile(MADE / name).namelist()
            for which in (b"attachedTemplate", b"image", b"externalLink")
            if each.endswith(".rels")
        }
        macro = {"word/vbaProject.bin": b"\xd0\xcf\x11\xe0" * 99, "xl/vbaProject.bin": b"\xd0\xcf\x11\xe0" * 99}
        assert read(name, changed(name, relations | macro)).drafts, name
        read(name, changed(name, {main: entities(part(name, main), outside)}))
    page = b"<img src='%s/i'><link rel=stylesheet href='%s/c'><iframe src='%s/f'></iframe><p>text" % (host, host, host)
    mail = b"From: a@x\r\nContent-Type: text/html\r\n\r\n" + page
    rst = b"text\n\n.. image:: %s/i\n.. csv-table:: x\n   :url: %s/c\n\n.. raw:: html\n   :url: %s/r\n" % (
        host,
        host,
        host,
    )
    for name, content in {"a.html": page, "a.eml": mail, "a.rst": rst}.items():
        assert "text" in read(name, content).drafts[0].text
    assert came == []


REACHING = """
import os, socket, subprocess, urllib.request
from retriever.readers.serve import Findings
def tried(call):
    try:
        call()
    except PermissionError as error:
        return str(error)
    except OSError as error:
        return repr(error)
    return "it went through"
def parse(content):
    url = content.decode()
    port = int(url.rpartition(":")[2])
    calls = [
        lambda: socket.create_connection(("127.0.0.1", port)),
        lambda: socket.getaddrinfo("x.example", 80),
        lambda: subprocess.run(["true"]),
        lambda: os.system("true"),
    ]
    return Findings([tried(call) for call in calls])
"""


def test_a_parser_reaches_nothing_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listener: tuple[str, list[object]]
) -> None:
    (tmp_path / "reaching.py").write_text(REACHING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    url, came = listener
    said = worker.ask("reaching", url.encode()).pages
    assert all("is not for parsers" in each for each in said), said
    assert came == []


@pytest.mark.parametrize("sheets", [2_000, pytest.param(10_000, marks=pytest.mark.long)])
@pytest.mark.usefixtures("bounded")
def test_thousands_of_sheets_are_read(sheets: int) -> None:
    book = part("libreoffice.xlsx", "xl/workbook.xml")
    head, sheet, tail = re.split(rb"(<sheet .*?/>)", book)
    named = re.sub(rb'name="[^"]*"', b'name="s%d"', sheet)
    many = b"".join(named % number for number in range(sheets))
    (draft,) = read("a.xlsx", changed("libreoffice.xlsx", {"xl/workbook.xml": head + many + tail})).drafts
    assert draft.text.count("## s") == draft.text.count("Name: Ada") == sheets


@pytest.mark.usefixtures("bounded")
def test_a_sheet_with_two_far_corners_is_ended() -> None:
    sheet = part("libreoffice.xlsx", MAIN["libreoffice.xlsx"])
    head, tail = sheet.partition(b"<sheetData>")[0], sheet.partition(b"</sheetData>")[2]
    cell = b'<row r="%d"><c r="%s"><v>1</v></c></row>'
    rows = cell % (1, b"A1") + cell % (1_048_576, b"XFD1048576")
    far = head + b"<sheetData>" + rows + b"</sheetData>" + tail
    reading = read("a.xlsx", changed("libreoffice.xlsx", {MAIN["libreoffice.xlsx"]: far}))
    assert reading.drafts or reading.problems


HOSTILE_TEXTS = {
    "a.csv": b'"' + b"a," * 5_000_000,
    "b.csv": b"a" + b"," * 3_000_000,
    "c.csv": b"a,b\n" * 200_000 + b'"',
    "a.tsv": b"a\tb\n1\t\x002\n",
    "a.rst": b"".join(b" " * n + b"* a\n\n" for n in range(2_000)),
    "b.rst": b"``" * 200_000,
    "c.rst": b"=" * 100_000 + b"\na\n" + b"=" * 100_000,
    "a.ipynb": b'{"cells": ' + b"[" * 1_000_000,
    "b.ipynb": b'{"cells": [{"cell_type": "code", "outputs": [{"data": {"text/plain": 7}}]}]}',
    "a.eml": b"".join(b"Content-Type: multipart/mixed; boundary=b%d\r\n\r\n--b%d\r\n" % (n, n) for n in range(3_000)),
    "b.eml": b"From: a\r\nSubject: =?x?b?AAAA?=\r\nContent-Type: text/plain; charset=no-such\r\n\r\n\xff\xfe text",
    "c.eml": b"Subject: " + b"=?utf-8?q?a?= " * 100_000 + b"\r\n\r\ntext",
    "a.py": b"def " * 2_000_000,
    "b.py": b"(" * 19_000 + b"\n" + b"    " * 4_000 + b"def a():\n" * 100_000,
    "a.sql": b"create " + b"a " * 9_000,
    "a.java": (b"a " * 9_000 + b"{\n") * 50,
    "a.mdx": b"{/*" * 500_000,
    "b.mdx": (b"<A " + b"a " * 5_000 + b"\n") * 50,
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE_TEXTS)
@pytest.mark.usefixtures("bounded")
def test_a_hostile_text_is_read_or_a_problem(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "CPU_S", 2)
    reading = read(name, HOSTILE_TEXTS[name])
    assert bool(reading.drafts) or bool(reading.problems)
    for draft in reading.drafts:
        assert "\0" not in draft.text and draft.text.encode()


@pytest.mark.parametrize("name", MAIN)
def test_what_is_of_another_format_says_so(name: str) -> None:
    assert "damaged or of another format" in reason(name, b"PK nothing")
    assert "password or is of an older binary format" in reason(name, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(999))
    with zipfile.ZipFile(output := io.BytesIO(), "w") as archive:
        archive.writestr("a", "b")
    assert reason(name, output.getvalue())
