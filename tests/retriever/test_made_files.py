"""Files of every format as programs make them: `made/` has what pandoc 2.17 and LibreOffice 7.4 wrote of one text."""

import csv
import io
import json
import re
from collections.abc import Sequence
from datetime import datetime
from email.message import EmailMessage
from pathlib import Path
from zipfile import ZipFile

import pytest
import xlsxwriter
from pptx import Presentation
from pptx.util import Pt

from retriever.chunking.count import count_words
from retriever.chunking.cut import CutRules, cut
from retriever.documents import Draft, PageStart
from retriever.readers.files import read, read_file
from tests.retriever.test_files import only

MADE = Path(__file__).parent / "made"
KEPT = (
    "# Leaving",
    "Give notice by letter, a month ahead.",
    "# Staying",
    "By post, not by mail.",
    "| A | 30 |",
    "of the house",
)


@pytest.mark.parametrize(
    "name", ["pandoc.docx", "pandoc.pptx", "pandoc.epub", "pandoc.rst", "libreoffice.docx", "libreoffice.pptx"]
)
def test_what_programs_write_is_read_with_its_structure(name: str) -> None:
    reading = read_file(MADE / name)
    assert reading.problems == ()
    (draft,) = reading.drafts
    assert draft.title == "The handbook"
    assert [each for each in KEPT if each not in draft.text] == []
    assert "127.0.0.1" not in draft.text, "a link is its text"
    assert name.endswith(".rst") or draft.metadata == {"author": "Ada Byron"}


def test_code_keeps_its_lines() -> None:
    for name in ("pandoc.docx", "pandoc.epub", "pandoc.rst"):
        assert "```\ndef f():\n    return 1\n```" in read_file(MADE / name).drafts[0].text, name


def test_an_empty_element_of_xhtml_takes_nothing_of_the_page() -> None:
    book, written = ZipFile(MADE / "pandoc.epub"), io.BytesIO()
    with ZipFile(written, "w") as empty:
        for name in book.namelist():
            empty.writestr(name, re.sub(b"<title>.*</title>", b'<title\n lang="en"/><noscript/>', book.read(name)))
    assert only("a.epub", written.getvalue()).text == only("a.epub", (MADE / "pandoc.epub").read_bytes()).text
    assert only("a.html", b"<head><TITLE /></head><p>Text") == Draft("Text", title="a")


def test_a_slide_is_a_page() -> None:
    draft = read_file(MADE / "pandoc.pptx").drafts[0]
    assert draft.pages == tuple(
        PageStart(n + 1, draft.text.index(each)) for n, each in enumerate(("# The", "# Lea", "# Sta", "# Not"))
    )
    deck = Presentation()
    slide = deck.slides.add_slide(deck.slide_layouts[5])
    title, notes = slide.shapes.title, slide.notes_slide.notes_text_frame
    assert title is not None and notes is not None
    title.text, notes.text = "Two\nlines", "said aloud"
    slide.shapes.add_group_shape().shapes.add_textbox(*[Pt(9)] * 4).text_frame.text = "in a group"
    deck.slides.add_slide(deck.slide_layouts[6])
    written = io.BytesIO()
    deck.save(written)
    assert only("a.pptx", written.getvalue()).text == "# Two lines\n\nin a group\n\nsaid aloud"


def test_each_row_stands_behind_its_header() -> None:
    written = io.BytesIO()
    with xlsxwriter.Workbook(written) as book:
        sheet = book.add_worksheet("Staff")
        sheet.write("A1", "Staff of 2026")
        for row, cells in enumerate(
            [["Name", "Born", "", "Note"], ["Ada", 36526, 7, "two\nlines"], ["Bob", None, 0.1]], 2
        ):
            sheet.write_row(row, 0, cells)
        sheet.write_datetime("B4", datetime(2000, 1, 2), book.add_format({"num_format": "yyyy-mm-dd"}))
        sheet.write_formula("D5", "=1+1", None, 2)
        book.add_worksheet("Numbers").write_row(0, 0, [1, 2])
        book.add_worksheet("Empty")
    assert only("a.xlsx", written.getvalue()).text == (
        "## Staff\n\nStaff of 2026\n\n- Name: Ada; Born: 2000-01-02; column 3: 7; Note: two lines\n"
        "- Name: Bob; column 3: 0.1; Note: 2\n\n## Numbers\n\n- column 1: 1; column 2: 2"
    )
    assert only("a.xlsx", (MADE / "libreoffice.xlsx").read_bytes()).text == (
        "## a\n\n- Name: Ada; Age: 30; City; Town: Bonn; old\n- Name: Bob; City; Town: Köln"
    )


@pytest.mark.parametrize("dialect", ["excel", "excel-tab", "unix"])
@pytest.mark.parametrize("codec", ["utf-8-sig", "utf-16"])
def test_separated_values_as_programs_write_them(dialect: str, codec: str) -> None:
    written = io.StringIO()
    rows = [["Name", "Town", "Note"], ["Ada", "Bonn, old", 'a "b"'], [], ["Bob", "", "one\ntwo"]]
    csv.writer(written, dialect).writerows(rows)
    assert only("a.csv", written.getvalue().encode(codec)).text == (
        '- Name: Ada; Town: Bonn, old; Note: a "b"\n- Name: Bob; Note: one two'
    )
    assert only("a.tsv", b"only\nheader\n").text == "- only: header"
    assert only("a.csv", b"sep=;\r\nName;Sizes\r\nAda;1,2,3\r\n").text == "- Name: Ada; Sizes: 1,2,3"


def test_every_chunk_of_a_long_table_has_the_names_of_its_columns() -> None:
    rows = "".join(f"{n},town {n},some words of note {n}\n" for n in range(300))
    parts = parts_of(only("a.csv", b"Number,Town,Note\n" + rows.encode()), 128)
    assert len(parts) > 20
    assert all(row.startswith("- Number: ") and "; Town: " in row for part in parts for row in part.splitlines())


def test_a_notebook_keeps_code_and_what_it_printed() -> None:
    assert "``` python\ndef f():" in only("a.ipynb", (MADE / "pandoc.ipynb").read_bytes()).text
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": ["\x1b[1m```\x1b[0m\n"]},
        {"data": {"text/plain": "3", "image/png": "iVBO"}, "text": None},
    ]
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "text"]},
        {"cell_type": "code", "source": "1", "outputs": outputs},
    ]
    book = {"cells": cells, "metadata": {"language_info": {"name": "python"}}, "nbformat": 4}
    draft = only("a.ipynb", json.dumps(book).encode())
    assert draft == Draft("# Title\ntext\n\n```python\n1\n```\n\n````\n```\n````\n\n```\n3\n```", title="Title")
    book["metadata"] = {"language_info": None}
    assert only("a.ipynb", json.dumps(book).encode()).text == draft.text.replace("python", "")


def test_a_mail_tells_who_wrote_when_and_what() -> None:
    mail = EmailMessage()
    mail["Subject"], mail["From"], mail["Date"] = "Schlüssel", "Ada <ada@x.example>", "Fri, 27 Nov 2026 10:00:00 +0100"
    mail.set_content("Under the mat. Grüße\n", charset="iso-8859-1")
    mail.add_alternative("<p>Not this <img src='http://127.0.0.1:9/x'></p>", subtype="html")
    mail.add_attachment(b"%PDF", maintype="application", subtype="pdf", filename="plan ü.pdf")
    draft = only("a.eml", bytes(mail))
    assert (draft.title, draft.metadata) == ("Schlüssel", {"author": "Ada <ada@x.example>"})
    assert draft.text == (
        "# Schlüssel\n\nFrom: Ada <ada@x.example>  \nDate: Fri, 27 Nov 2026 10:00:00 +0100  \n"
        "Attachments: plan ü.pdf\n\nUnder the mat. Grüße"
    )
    page = EmailMessage()
    page["From"] = "a@x.example"
    page.set_content("<h1>Hi</h1><p>a <b>page</b></p>", subtype="html")
    assert only("a.eml", bytes(page)).text == "From: a@x.example\n\n# Hi\n\na page"


def test_a_mail_loses_no_part_that_is_shown() -> None:
    inner, mail = EmailMessage(), EmailMessage()
    inner["Subject"] = "Spare key"
    inner.set_content(" \n")
    inner.add_alternative("<p>By the <b>door</b></p>", subtype="html")
    mail["From"] = "a@x.example"
    mail.set_content("<p>First half</p>", subtype="html")
    mail.add_attachment(b"%PDF", "application", "pdf", filename="plan.pdf", disposition="inline")
    mail.add_attachment(b"GIF", "image", "gif", filename="image001.gif", disposition="inline", cid="<1>")
    mail.add_attachment("Second half", disposition="inline")
    mail.add_attachment("Not this", filename="log.txt")
    mail.add_attachment(inner)
    assert only("a.eml", bytes(mail)).text == (
        "From: a@x.example  \nAttachments: plan.pdf, log.txt\n\nFirst half\n\nSecond half\n\n# Spare key\n\nBy the door"
    )
    mail.add_attachment(EmailMessage())
    (problem,) = read("a.eml", bytes(mail)).problems
    assert problem.reason.startswith("a mail that is forwarded in it is not read: it has none of a mail's headers")


SPHINX = b""".. _label:

Title
=====

Copied :ref:`text <label>` and :func:`~a.b.call`.

.. toctree::
   :maxdepth: 2

   one
   two

.. versionadded:: 3.1 Even *more*.

.. py:function:: send(to)

   Sends it.

.. code-block:: python
   :caption: x
   :emphasize-lines: 1

   send("a")

.. include:: /etc/passwd
.. raw:: html

   <script>x</script>

=== =
a   b
bad table
===
"""


def test_what_only_sphinx_knows_keeps_its_words() -> None:
    draft = only("a.rst", SPHINX)
    assert draft.title == "Title"
    kept = (
        "Copied text and call.",
        "versionadded: 3.1 Even more.",
        "send(to)",
        "Sends it.",
        '```\nsend("a")\n```',
        "bad table",
    )
    assert [each for each in kept if each not in draft.text] == [], draft.text
    assert not any(each in draft.text for each in ("maxdepth", "two", "root:", "script", "System Message"))


def test_a_page_with_components_keeps_its_prose() -> None:
    page = """import Tabs from "x"
import {
  a,
} from "y"

# Title

{/* note
to self */}
<Tabs>
<TabItem value="a" label="The first">

Import text <b>x</b>.

```js
import x from "y"
<Tabs>
```

</TabItem>
</Tabs>
export of goods is prose
"""
    assert only("a.mdx", page.encode()).text.split() == [
        *("#", "Title", "<TabItem", 'value="a"', 'label="The', 'first">', "Import", "text", "<b>x</b>."),
        *("```js", "import", "x", "from", '"y"', "<Tabs>", "```", "export", "of", "goods", "is", "prose"),
    ]


CODE = {
    "a.py": """import a


@mark
def one():
    def inner(): pass


class Two(Base):
    x = 1

    # told
    async def three(self):
        pass
""",
    "a.js": """import x from "y";

export const one = async (a) => {
  if (a) {
  }
};

class Two {
  three(a) {
    call(a);
  }
}
""",
    "a.java": """package a;

public final class Two {
    /** Told. */
    @Override
    public List<String> three(int a) throws E {
        for (;;) {
        }
    }
}
""",
    "a.go": """package a

type Two struct {
\tx int
}

// Three is told.
func (t *Two) Three(a int) error {
\treturn nil
}
""",
    "a.rs": """use a;

#[derive(Debug)]
pub struct One;

impl<T> Two {
    pub(crate) fn three(&self) {}
}
""",
    "a.c": """#include <a.h>

/* Told. */
static int one(int a,
               int b)
{
    return call(a);
}

struct Two {
    int x;
};
""",
    "a.rb": """module One
  class Two
    def three
    end
  end
end
""",
    "a.sql": """CREATE TABLE IF NOT EXISTS one (
  a int
);

create or replace view Two as select 1;
""",
    "a.sh": """set -e
one() {
  echo 1
}
""",
    "a.r": """one <- function(a) {
  a
}
""",
}
NAMES = {
    "a.py": "one Two Two.three",
    "a.js": "one Two Two.three",
    "a.java": "Two Two.three",
    "a.go": "Two Three",
    "a.rs": "One Two Two.three",
    "a.c": "one Two",
    "a.rb": "One One.Two One.Two.three",
    "a.sql": "one Two",
    "a.sh": "one",
    "a.r": "one",
}


@pytest.mark.parametrize("name", CODE)
def test_source_code_shows_its_definitions(name: str) -> None:
    code = CODE[name]
    lines = only(name, code.encode()).text.splitlines()
    assert [line.lstrip("# ") for line in lines if line.startswith("##")] == NAMES[name].split()
    told = [line for line in lines if line and not line.startswith(("##", "```"))]
    assert told == [line for line in code.splitlines() if line], "no line is lost"
    assert "Told" not in code or "Told" in "\n".join(lines).partition("\n## ")[2], "comments belong to what follows"


def parts_of(draft: Draft, tokens: int) -> Sequence[str]:
    return [part.text for part in cut(draft.text, CutRules(tokens), count=count_words)]


def test_source_code_is_cut_at_its_definitions() -> None:
    content = Path(__file__).parents[2].joinpath("retriever/readers/worker.py").read_bytes()
    parts = parts_of(only("worker.py", content), 256)
    assert [part for part in parts if not part.startswith(("##", "```python"))] == []
    assert all(part.rstrip().endswith("```") for part in parts)


def test_what_a_program_wrote_on_one_line_is_no_source() -> None:
    (problem,) = read("a.js", b"x=1;" * 10_000).problems
    assert "40,000 characters" in problem.reason and "leave it out" in problem.reason
