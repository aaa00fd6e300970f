"""Files made to hurt: bombs, abysses, endless lines, mangled versions of every valid file. None raises or swells."""

import json
import random
import re
import resource
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retriever.readers import jsonl, parse_pdf, worker
from retriever.readers.files import read
from retriever.readers.reading import Reading
from tests.retriever.test_files import LINES, PAGE, encrypted, pdf

ROOT = Path(__file__).parent.parent.parent

TEXTS = {
    "a.txt": "Größe\r\n東京 😀\n".encode() * 3,
    "b.txt": "Größe 東京\n".encode("utf-16"),
    "c.txt": "L'été dernier, nous avons dîné à l'hôtel où le garçon était très gêné.".encode("cp1252"),
    "a.md": b"---\ntitle: \"A b\"\ntags: [a, 'b', 1.5]\n---\n# Head #\n\nText\n===\n```\ncode\n```\n",
    "a.jsonl": LINES,
    "a.json": b'[{"text": "a", "metadata": {"a": [1, {"b": "\\ud83d\\ude00"}]}}, {"chunks": ["a"]}]',
}
PDFS = [pdf(["One page.", "Two pages."]), encrypted(pdf(["One page."]), "")]


@st.composite
def mangled(draw: st.DrawFn, valid: bytes) -> bytes:
    """Flipped bits, cut ends, foreign and repeated bytes."""
    content = bytearray(valid)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(content)))
        how = draw(st.sampled_from(["flip", "cut", "insert", "repeat"]))
        if how == "flip" and at < len(content):
            content[at] ^= 1 << draw(st.integers(0, 7))
        elif how == "cut":
            del content[at : at + draw(st.integers(1, 1 + len(content)))]
        elif how == "insert":
            content[at:at] = draw(st.binary(max_size=20))
        elif how == "repeat":
            content[at:at] = content[at : at + 40] * draw(st.integers(1, 20))
    return bytes(content)


def is_sound(reading: Reading) -> bool:
    """Something comes of every file, and all of it can be stored."""
    for draft in reading.drafts:
        json.dumps([draft.text, draft.title, draft.id, dict(draft.metadata)], ensure_ascii=False).encode()
        for part in draft.parts:
            json.dumps([part.text, part.name, dict(part.metadata)], ensure_ascii=False).encode()
    for problem in reading.problems:
        (problem.place + problem.reason).encode()
    return bool(reading.drafts or reading.problems)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_mangled_texts_never_raise(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(TEXTS)))
    assert is_sound(read(name, data.draw(mangled(TEXTS[name]))))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_mangled_pdfs_never_raise(data: st.DataObject) -> None:
    found = parse_pdf.parse(data.draw(mangled(data.draw(st.sampled_from(PDFS)))))
    assert any(found.pages) or found.blank or found.problems
    "".join((*found.pages, *found.problems, found.title, found.author)).encode()


FUZZ_HTML = """
import random, resource, sys
from retriever.readers.parse_html import parse
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
page, dice = sys.stdin.buffer.read().decode(), random.Random(7)
junk = ["", "<", ">", "</", "\\0", "&#xD800;", "<!--"]
for _ in range(int(sys.argv[1])):
    text = list(page)
    for _ in range(dice.randrange(1, 12)):
        at = dice.randrange(len(text))
        text[at : at + dice.choice([0, 1, 1, 9])] = dice.choice([*junk, page[at : at + 30]])
    "".join(parse("".join(text).encode()).pages).encode()
"""


def run(script: str, argument: int, *, said: bytes = b"") -> None:
    command = [sys.executable, "-c", script, str(argument)]
    ended = subprocess.run(command, input=said, cwd=ROOT, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr.decode()


def test_mangled_pages_never_end_their_parser() -> None:
    run(FUZZ_HTML, 800, said=PAGE.encode())


def test_mangled_files_come_back_from_the_child() -> None:
    dice = random.Random(3)
    for name, valid in (("a.html", PAGE.encode()), ("a.pdf", PDFS[0])) * 4:
        content = bytearray(valid)
        for _ in range(20):
            content[dice.randrange(len(content))] = dice.randrange(256)
        assert is_sound(read(name, bytes(content)))


def reason(name: str, content: bytes) -> str:
    reading = read(name, content)
    assert reading.drafts == ()
    (problem,) = reading.problems
    return problem.reason


@pytest.fixture
def bounded() -> Iterator[None]:
    """No child takes more than it may; other tests' children in this process may have taken more before.

    A child's peak begins with that of this process, whose memory it has until it runs its own program.
    """

    def peak(whose: int) -> int:
        worker.close()  # it counts those that were waited for, and what these have waited for
        return resource.getrusage(whose).ru_maxrss << 10

    before = peak(resource.RUSAGE_CHILDREN)
    yield
    own = peak(resource.RUSAGE_SELF)
    assert peak(resource.RUSAGE_CHILDREN) <= max(before, own, worker.MEMORY_BYTES)


@pytest.mark.parametrize("tag", [b"<div>", b"<b>", b"<ul><li>"])
@pytest.mark.usefixtures("bounded")
def test_a_page_nested_a_million_deep_is_no_page(tag: bytes) -> None:
    reading = read("a.html", tag * 1_000_000 + b"x")
    assert any("depth" in problem.reason for problem in reading.problems)


def test_text_beside_an_abyss_is_read() -> None:
    (draft,) = read("a.html", b"<p>above</p>" + b"<div>" * 50_000 + b"x" + b"</div>" * 50_000 + b"<p>below</p>").drafts
    assert draft.text == "above\n\nbelow"


@pytest.mark.parametrize("name", ["a.html", "a.pdf"])
def test_a_parser_over_its_memory_is_ended(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "MEMORY_BYTES", 256 << 20)
    content = b"<p>x</p>" * 3_000_000 if name == "a.html" else PDFS[0] + bytes(300 << 20)
    assert "256 MiB of memory" in reason(name, content)


def test_a_parser_that_is_missing_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    (problem,) = worker.ask("retriever.readers.parse_nothing", b"").problems
    assert "No module named" in problem
    worker.close()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert "could be started" in reason("a.html", b"x")


def test_a_parser_without_its_library_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lacking.py").write_text("import no_such_library\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (problem,) = worker.ask("lacking", b"").problems
    assert re.search(r"no_such_library.*pip install 'kvweave\[readers\]'", problem)


def raw_pdf(*objects: bytes) -> bytes:
    """Objects from number 1 on, the first being the root."""
    content = b"%PDF-1.7\n"
    table = b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    for number, each in enumerate(objects, 1):
        table += b"%010d 00000 n \n" % len(content)
        content += b"%d 0 obj\n%s\nendobj\n" % (number, each)
    tail = b"trailer\n<< /Root 1 0 R /Size %d >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, len(content))
    return content + table + tail


def bomb(gigabytes: int) -> bytes:
    """Spaces that a deflater packs 1,000 to 1, one block repeated."""
    packer = zlib.compressobj(9)
    packer.compress(b"")
    block = packer.compress(b" " * (16 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    packer = zlib.compressobj(9)
    head = packer.compress(b" ") + packer.flush(zlib.Z_FULL_FLUSH)
    return head + block.removeprefix(head[:2]) * (64 * gigabytes)


FONT = b"<< /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >>"
WORDS = b"BT /F1 12 Tf (word) Tj ET\n"


def page(contents: int) -> bytes:
    return b"<< /Type /Page /MediaBox [0 0 9 9] /Contents %d 0 R /Resources %s >>" % (contents, FONT)


def stream(data: bytes, filters: bytes = b"/FlateDecode") -> bytes:
    return b"<< /Length %d /Filter %s >>\nstream\n%s\nendstream" % (len(data), filters, data)


def one_page(contents: bytes) -> bytes:
    pages = b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>"
    return raw_pdf(b"<< /Type /Catalog /Pages 2 0 R >>", pages, page(4), contents)


def deep_tree(depth: int) -> bytes:
    nodes = (b"<< /Type /Pages /Kids [%d 0 R] /Count 1 >>" % (number + 3) for number in range(depth))
    return raw_pdf(b"<< /Type /Catalog /Pages 2 0 R >>", *nodes)


def wide_tree(depth: int, contents: bytes) -> bytes:
    """Every node holds the next ten times: 10 ** depth pages."""
    kids = (b"%d 0 R " % (number + 3) * 10 for number in range(depth))
    nodes = (b"<< /Type /Pages /Kids [%s] /Count 1 >>" % each for each in kids)
    return raw_pdf(b"<< /Type /Catalog /Pages 2 0 R >>", *nodes, page(depth + 3), contents)


HOSTILE_PDFS = {
    "4 GiB": one_page(stream(bomb(4))),
    "packed twice": one_page(stream(zlib.compress(bomb(1)), b"[/FlateDecode /FlateDecode]")),
    "packed a hundred times": one_page(stream(b"x", b"[%s]" % (b"/FlateDecode " * 100))),
    "many words": one_page(stream(zlib.compress(WORDS * 2_000_000))),
    "many pages of many words": wide_tree(4, stream(zlib.compress(WORDS * 20_000))),
    "deep tree": deep_tree(5000),
    "wide tree": wide_tree(9, stream(zlib.compress(WORDS))),
    "a tree that is its own child": raw_pdf(
        b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Kids [2 0 R 2 0 R] /Count 2 >>"
    ),
    "a stream as long as itself": one_page(stream(b"x").replace(b"/Length 1 ", b"/Length 4 0 R ")),
    "nested arrays": raw_pdf(b"<< /Type /Catalog /Pages " + b"[" * 200_000 + b"]" * 200_000 + b" >>"),
    "nested operands": one_page(stream(zlib.compress(WORDS + b"[" * 1_000_000))),
}


def test_the_pdfs_made_here_are_read_where_they_are_harmless() -> None:
    for content in (one_page(stream(zlib.compress(WORDS))), wide_tree(1, stream(zlib.compress(WORDS)))):
        assert {*parse_pdf.parse(content).pages} == {"word"}


@pytest.mark.parametrize("which", HOSTILE_PDFS)
@pytest.mark.usefixtures("bounded")
def test_a_hostile_pdf_is_a_problem(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(HOSTILE_PDFS[which]) < 5 << 20
    monkeypatch.setattr(worker, "CPU_S", 1)
    assert reason("a.pdf", HOSTILE_PDFS[which])


def test_json_deeper_than_the_parser_goes_is_a_problem() -> None:
    for depth in (jsonl.MAX_DEPTH, 900, 1_000_000):
        nested = b'{"text": "a", "metadata": {"a": ' + b"[" * depth + b"]" * depth + b"}}"
        assert "nested" in reason("a.jsonl", nested)
        assert "nested" in reason("a.json", b"[" + nested + b"]")
        assert reason("a.jsonl", b"[" * depth)


def test_a_broken_escape_is_no_surrogate() -> None:
    assert "not valid JSON" in reason("a.jsonl", b'{"text": "\\udc\xcb\xcb"}')


def test_metadata_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "MAX_METADATA_BYTES", 10)
    assert "at most 10" in reason("a.jsonl", b'{"text": "a", "metadata": {"a": "bcdefgh"}}')


LONG_LINES = """
import resource, sys
from retriever.readers.files import read
count = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (count * 8 + (1 << 29), count * 8 + (1 << 29)))
line = b"word " * (count // 5)
for name, made, kept in (
    ("a.txt", lambda: line, True),
    ("a.txt", lambda: line[:-1] + b"\\xff", False),
    ("a.txt", lambda: b"\\xe9" * count, False),
    ("a.txt", lambda: bytes(count), False),
    ("a.md", lambda: line, True),
    ("a.md", lambda: b"---\\na: [" + line, True),
    ("a.md", lambda: b"# " + b"#" * count, True),
    ("a.md", lambda: b"\\n=" * (count // 2), True),
    ("a.html", lambda: b"<p>" + line, None),
    ("a.jsonl", lambda: b'{"text": "' + line + b'"}', count < 64 << 20),
    ("a.jsonl", lambda: b'{"chunks": [' + b'"a",' * (count // 200) + b'""]}', False),
    ("a.jsonl", lambda: b"[" * count, False),
    ("a.jsonl", lambda: b"\\n" * count, False),
    ("a.json", lambda: b"[" + b"1," * (count // 200) + b"1]", False),
    ("a.pdf", lambda: line, False),
):
    content = made()
    reading = read(name, content)
    assert kept is None or bool(reading.drafts) is kept, (name, content[:20], reading.problems)
    assert reading.drafts or reading.problems
    assert name not in ("a.txt", "a.md") or not kept or reading.drafts[0].text == content.decode()
    del reading, content
"""


@pytest.mark.parametrize("nbytes", [20_000_000, pytest.param(200_000_000, marks=pytest.mark.long)])
def test_a_long_line_takes_a_multiple_of_its_memory(nbytes: int) -> None:
    run(LONG_LINES, nbytes)


POEM = """
import os, sys
from multiprocessing.connection import Connection
def parse(content):
    Connection(int(sys.argv[2])).send_bytes(b"Beautiful is better than ugly.")
    os._exit(0)
"""


def test_what_a_child_says_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "poem.py").write_text(POEM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(worker.UnreadableFile, match="nobody understands"):
        worker.ask("poem", b"")
