"""Every format as its users write it: what is kept, what becomes title and metadata, and what is refused and how."""

import codecs
import io
import json
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from fpdf import FPDF
from hypothesis import given
from hypothesis import strategies as st
from pypdf import PdfWriter

from retriever.documents import DocumentPart, Draft, PageStart
from retriever.readers import jsonl
from retriever.readers.files import SUFFIXES, read, read_all, read_file, walk
from retriever.readers.reading import MAX_BYTES

FRENCH = "L'été dernier, nous avons dîné à l'hôtel où le garçon était très gêné.\n"
RUSSIAN = "Съешь ещё этих мягких французских булок, да выпей чаю. Это русский текст.\n"
CZECH = "Příliš žluťoučký kůň úpěl ďábelské ódy.\n"
JAPANESE = "これは日本語のテキストです。東京は日本の首都です。\n"

PAGE = """<!doctype html><html><head><meta charset="utf-8">
<title> The \n title </title><style>p { color: red }</style></head>
<body><nav><a href="/">Home</a></nav><header><h1>Heading <em>one</em></h1></header>
<p>A <a href="http://x.example/y">link</a> &amp; 5 &lt; 6.</p><script>var hidden = "<p>no</p>"</script>
<ul><li>one<ul><li>below</li></ul></li><li>two</li></ul>
<table><tr><th>a</th><th>b</th></tr><tr><td>1 | 2</td><td>3</td></tr></table>
<pre><code class="language-python">def f():
    return 1
</code></pre></body></html>"""
PAGE_TEXT = """# Heading one

A link & 5 < 6.

- one
  - below
- two

| a | b |
| --- | --- |
| 1 \\| 2 | 3 |

```python
def f():
    return 1
```"""


def only(name: str, content: bytes) -> Draft:
    reading = read(name, content)
    assert reading.problems == ()
    (draft,) = reading.drafts
    return draft


def refused(name: str, content: bytes) -> str:
    reading = read(name, content)
    assert reading.drafts == ()
    (problem,) = reading.problems
    assert problem.place == name
    return problem.reason


def pdf(pages: Sequence[str]) -> bytes:
    written = FPDF()
    written.set_title("A title")
    written.set_author("An author")
    written.set_font("helvetica", size=12)
    for page in pages:
        written.add_page()
        written.multi_cell(0, 8, page) if page else None
    return bytes(written.output())


def encrypted(content: bytes, password: str) -> bytes:
    writer = PdfWriter(clone_from=io.BytesIO(content))
    writer.encrypt(password, owner_password="owner", algorithm="AES-256")
    output = io.BytesIO()
    writer.write(output)
    return output.getvalue()


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1))
def test_text_is_verbatim_in_every_marked_encoding(text: str) -> None:
    if text.isspace() or text.startswith("\ufeff"):
        return
    marked = (codecs.BOM_UTF16_LE + text.encode("utf-16-le"), codecs.BOM_UTF16_BE + text.encode("utf-16-be"))
    for content in (text.encode(), codecs.BOM_UTF8 + text.encode(), *marked):
        assert only("notes.txt", content) == Draft(text, title="notes")


@pytest.mark.parametrize(("text", "codec"), [(FRENCH, "cp1252"), (RUSSIAN, "cp1251"), (RUSSIAN, "koi8-r")])
def test_an_old_encoding_is_recognised_by_its_language(text: str, codec: str) -> None:
    assert only("old.TXT", (text * 3).encode(codec)).text == text * 3


def test_a_doubtful_encoding_names_the_byte() -> None:
    assert "byte 0xe9 at offset 3" in refused("a.txt", b"caf\xe9")
    damaged = "Größe und Schönheit der Bäume. ".encode() * 9 + b"\xff."
    assert f"byte 0xff at offset {len(damaged) - 2}" in refused("a.txt", damaged), "damaged UTF-8 is nothing else"
    assert "breaks at byte 4" in refused("a.txt", codecs.BOM_UTF16_LE + b"a\0" + b"\x00\xdc" + b"a\0")


def test_binary_is_no_text() -> None:
    assert "NUL byte at offset 2" in refused("a.log", b"ab\0c")
    assert "NUL byte at offset 1" in refused("a.md", "no mark".encode("utf-16-le"))
    assert "NUL character at offset 1" in refused("a.txt", codecs.BOM_UTF16_LE + "a\0".encode("utf-16-le"))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_empty_file_is_a_problem_in_every_format(suffix: str) -> None:
    assert read(f"a{suffix}", b"").drafts == ()
    assert len(read(f"a{suffix}", b"").problems) == 1


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("intro\n\n# The title ##\n# later", "The title"),
        ("## second\n\nThe title\n===\n", "The title"),
        ("```\n# code\n```\n~~~~\n~~~\n# code\n~~~~\r\n# The title\r\n", "The title"),
        ("```npm i``` installs it.\n\n# The title\n", "The title"),
        ("#hashtag\n    # code\n## second\n", "notes"),
        ("---\ntitle: Front\n---\ntext", "Front"),
        ("---\ntitle: Front\n---\n# The title\n", "The title"),
    ],
)
def test_the_title_of_markdown(text: str, title: str) -> None:
    draft = only("dir/notes.md", text.encode())
    assert draft.title == title
    assert text.endswith(draft.text)
    assert draft.text == text or "Front" not in draft.text


def test_simple_front_matter_becomes_metadata() -> None:
    front = "---\r\n# comment\r\ntitle: A: b\r\n---\r\nx"
    assert only("a.md", front.encode()).text == front, "YAML says it is wrong"
    front = """---
author: O'Neil & Söhne
quoted: "a \\"b\\" \\u00e9"
single: 'it''s'
number: -12
zip: 01234
share: 0.5
draft: false
nothing: null
date: 2026-11-21
tags: [a b, 'c, d', 3, true]
none: []
---
Text
"""
    draft = only("a.md", front.encode())
    assert draft.text == "Text\n"
    assert draft.metadata == {
        "author": "O'Neil & Söhne",
        "quoted": 'a "b" é',
        "single": "it's",
        "number": -12,
        "zip": "01234",
        "share": 0.5,
        "draft": False,
        "nothing": None,
        "date": "2026-11-21",
        "tags": ["a b", "c, d", 3, True],
        "none": [],
    }


@pytest.mark.parametrize(
    "line", ["a:\n  b: 1", "a: {b: 1}", "a: |\n  text", "- a", "a: 1\na: 2", "a: [[1]]", "a: 'b", "a: x # y", "a: *b"]
)
def test_front_matter_that_needs_yaml_stays_in_the_text(line: str) -> None:
    text = f"---\n{line}\n---\nText"
    assert only("a.md", text.encode()) == Draft(text, title="a")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.html", "<title>{}</title><p>Text"),
        ("a.jsonl", '{{"title": "{}", "text": "Text"}}'),
        ("a.md", "---\ntitle: {}\n---\nText"),
    ],
)
def test_a_long_title_is_cut(name: str, content: str) -> None:
    assert only(name, content.format("t" * 5_000).encode()).title == "t" * 1_000


def test_html_keeps_its_structure_and_loses_its_noise() -> None:
    assert only("a.html", PAGE.encode()) == Draft(PAGE_TEXT, title="The title")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"<meta charset='shift_jis'><p>" + JAPANESE.encode("shift_jis"), JAPANESE),
        (b"<meta http-equiv=x content='text/html; charset=ISO-8859-1'><p>\x93caf\xe9\x94", "“café”"),
        (b"<meta charset=iso-2022-jp><p>" + JAPANESE.encode("iso2022_jp"), JAPANESE),
        (b"<?xml version='1.0' encoding='iso-8859-2'?><p>" + CZECH.encode("iso-8859-2"), CZECH),
        (b"<meta charset=iso-8859-1><p>" + JAPANESE.encode(), JAPANESE),
        (codecs.BOM_UTF16_BE + f"<meta charset=utf-8><p>{FRENCH}".encode("utf-16-be"), FRENCH),
    ],
)
def test_the_character_set_of_html(content: bytes, text: str) -> None:
    assert only("page.HTM", content) == Draft(text.strip(), title="page")


def test_the_heading_names_a_page_without_a_title() -> None:
    assert only("a.html", b"<h2>no</h2><h1>Top <i>most</i></h1>").title == "Top most"


@pytest.mark.parametrize(
    "line", ["text `broken", "* an *item", "|version|", "foot [1]_", "`link`_ and other_", ":ref:`a`b"]
)
def test_markup_with_an_error_stands_in_the_text_as_it_was_written(line: str) -> None:
    draft = only("a.rst", f"A {line}\n{'=' * 30}\n\n{line}\n\n.. note:: {line}\n".encode())
    told = [each.lstrip("- ").replace("\\", "") for each in draft.text.splitlines() if each]
    assert told == [f"# A {line}", line.lstrip("* "), "Note", line.lstrip("* ")]


def test_a_pdf_knows_where_its_pages_begin() -> None:
    draft = only("a.pdf", pdf(["First page.\nTwo lines.", "Second page."]))
    assert draft == Draft(
        "First page.\nTwo lines.\n\nSecond page.",
        title="A title",
        metadata={"author": "An author"},
        pages=(PageStart(1, 0), PageStart(2, draft.text.index("Second"))),
    )


def test_pages_without_text_are_named_and_the_others_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retriever.readers.pdf.find_spec", lambda _: None)
    reading = read("a.pdf", pdf(["", "two", "", "", "five"]))
    (draft,) = reading.drafts
    assert (draft.text, draft.pages) == ("two\n\nfive", (PageStart(2, 0), PageStart(5, 5)))
    (problem,) = reading.problems
    assert "page 1, 3-4 of 5" in problem.reason
    assert "kvweave[ocr]" in refused("scan.pdf", pdf(["", ""]))


def test_a_password_is_asked_for_only_where_there_is_one() -> None:
    content = pdf(["A page."])
    assert "password" in refused("a.pdf", encrypted(content, "secret"))
    assert only("a.pdf", encrypted(content, "")).text == "A page."


LINES = b"""{"id": "1", "title": "t", "text": " verbatim\\n", "metadata": {"year": 2026, "tags": ["a", null]}}

{"chunks": ["one ", {"id": "c", "text": "two", "metadata": {"k": 1.5}}], "title": null}\r
{"text": "a", "txt": 1}
{"chunks": [{"text": "a", "name": "b"}]}
{"text": "a", "chunks": ["b"]}
{"title": "a"}
{"text": " "}
{"chunks": []}
{"chunks": ["a", ""]}
{"text": "\\ud800"}
{"text": "\\udc00\\ud800"}
{"text": "a\\u0000b"}
{"text": "\xff"}
{"text": "a", "metadata": {"x": NaN}}
{"text": "a", "metadata": [1]}
{"text": "a"
{"text": 7}
{"text": "last"}"""


def test_each_line_of_jsonl_is_judged_alone() -> None:
    reading = read("f.jsonl", codecs.BOM_UTF8 + LINES)
    assert reading.drafts == (
        Draft(" verbatim\n", id="1", title="t", metadata={"year": 2026, "tags": ["a", None]}),
        Draft(parts=(DocumentPart("one "), DocumentPart("two", name="c", metadata={"k": 1.5}))),
        Draft("last"),
    )
    said = {problem.place: problem.reason for problem in reading.problems}
    assert list(said) == [f"f.jsonl:{number}" for number in range(4, 19)]
    assert "`txt`" in said["f.jsonl:4"] and "id, title, text or chunks, metadata" in said["f.jsonl:4"]
    assert "`name`" in said["f.jsonl:5"]
    assert all("text or chunks" in said[f"f.jsonl:{number}"] for number in (6, 7))
    assert "no text" in said["f.jsonl:8"] and "empty" in said["f.jsonl:9"] and "chunk 1" in said["f.jsonl:10"]
    assert "\\ud800" in said["f.jsonl:11"] and "\\udc00" in said["f.jsonl:12"] and "NUL" in said["f.jsonl:13"]
    assert "UTF-8" in said["f.jsonl:14"]


def test_an_id_or_a_number_that_no_catalog_keeps_is_told_with_its_line() -> None:
    lines = [{"id": "x" * 1101}, {"id": ".."}, {"metadata": {"a": {"n": 10**400}}}, {"id": "x" * 1100}]
    lines += [{"metadata": {"n": 2**70}}]
    reading = read("f.jsonl", "\n".join(json.dumps({"text": "a", **line}) for line in lines).encode())
    assert [draft.id or draft.metadata for draft in reading.drafts] == ["x" * 1100, {"n": 2**70}]
    long, dots, number = reading.problems
    assert [each.place for each in reading.problems] == [f"f.jsonl:{number}" for number in (1, 2, 3)]
    assert "1,100 characters" in long.reason and "neither . nor .." in dots.reason
    assert number.reason == "a.n: a number of 1329 bits is too large, write it as text"


def test_ids_may_be_whole_numbers() -> None:
    assert only("a.jsonl", b'{"id": 0, "text": "a"}') == Draft("a", id="0")
    assert only("a.json", b'{"id": -7, "chunks": [{"id": 12345678901234567890123, "text": "a"}]}') == Draft(
        parts=(DocumentPart("a", name="12345678901234567890123"),), id="-7"
    )
    assert all("id" in refused("a.json", b'{"text": "a", "id": %b}' % each) for each in (b"1.5", b"true", b"[1]"))


def test_json_is_one_document_or_a_list() -> None:
    assert only("a.json", b' {"text": "a"} ') == Draft("a")
    reading = read("a.json", b'[{"text": "a"}, 7, {"text": "b"}]')
    assert reading.drafts == (Draft("a"), Draft("b"))
    assert [problem.place for problem in reading.problems] == ["a.json[1]"]
    assert ".jsonl" in refused("a.json", b'[{"text": "a"}')


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.lists(st.text().filter(lambda text: text.strip() and "\0" not in text), min_size=1),
    st.dictionaries(st.text(), JSON),
)
def test_what_json_says_is_kept(chunks: list[str], metadata: dict[str, object]) -> None:
    line = msgspec.json.encode({"chunks": chunks, "metadata": metadata})
    assert only("a.ndjson", line) == Draft(parts=tuple(map(DocumentPart, chunks)), metadata=metadata)


def test_a_file_of_bad_lines_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "MAX_PROBLEMS", 3)
    reading = read("a.jsonl", b'{"text": "a"}\n' + b"7\n" * 10 + b'{"text": "b"}\n')
    assert reading.drafts == (Draft("a"),)
    assert [problem.place for problem in reading.problems] == ["a.jsonl:2", "a.jsonl:3", "a.jsonl:4", "a.jsonl"]
    assert "not tried" in reading.problems[-1].reason


def test_blank_lines_count() -> None:
    (problem,) = read("a.jsonl", b'\n \r\n{"text": "a"}\n\n\n7').problems
    assert problem.place == "a.jsonl:6"


def test_a_file_holds_a_limited_number_of_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "MAX_DRAFTS", 3)
    reading = read("a.jsonl", b'{"chunks": ["a", "b"]}\n' * 3)
    assert len(reading.drafts) == 1 and "at most 3" in reading.problems[0].reason


def test_an_unknown_suffix_lists_the_known_ones() -> None:
    reason = refused("a.png", b"x")
    assert "'.png'" in reason and all(suffix in reason for suffix in SUFFIXES)
    assert refused("README", b"x")


def test_a_file_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "large.txt").touch()
    os.truncate(tmp_path / "large.txt", MAX_BYTES + 1)
    names = ("absent.txt", "pipe.txt", "large.txt", "a\0b.txt", "\ud800.txt")
    for path in (tmp_path, *(tmp_path / name for name in names)):
        reading = read_file(path)
        assert reading.drafts == () and len(reading.problems) == 1
        reading.problems[0].place.encode()


def test_folders_are_walked_in_order_and_one_broken_file_stops_nothing(tmp_path: Path) -> None:
    for name in ("b.md", "a/z.txt", "a/y.JSONL", "a/picture.png", ".git/c.txt", "a/.hidden.txt", "c.pdf", "d.txt"):
        path = tmp_path / "corpus" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b'{"text": "text"}')
    corpus = tmp_path / "corpus"
    (corpus / "a" / "loop").symlink_to(corpus, target_is_directory=True)
    (corpus / "e.txt").symlink_to(corpus / "absent")
    beside = tmp_path / "beside.bin"
    beside.touch()

    skipped = list[Path]()
    readings = dict(read_all([corpus, beside, tmp_path / "absent.txt"]))
    assert len(list(walk([corpus, beside], skipped.append))) == 7
    assert skipped == [corpus / ".git", corpus / "a/.hidden.txt", corpus / "a/picture.png"]

    names = ["a/y.JSONL", "a/z.txt", "b.md", "c.pdf", "d.txt", "e.txt"]
    assert list(readings) == [*(corpus / name for name in names), beside, tmp_path / "absent.txt"]
    broken = [path.name for path, reading in readings.items() if reading.problems]
    assert broken == ["c.pdf", "e.txt", "beside.bin", "absent.txt"]
    assert all(len(reading.drafts) + len(reading.problems) == 1 for reading in readings.values())
