"""What leads elsewhere is no text: navigation, lists of links, licence headers. Whatever says something stays."""

from hypothesis import given
from hypothesis import strategies as st

from retriever.readers.files import read
from retriever.readers.link_lists import without_link_lists
from retriever.readers.markdown import _LINK  # pyright: ignore[reportPrivateUsage]

PAGE = """<title>T</title><body>
<div class="bar"><a href="/">Home</a><ul><li>Light</li><li>Dark</li></ul></div>
<div role="navigation"><p>Where you are</p></div>
<main><h1>Head<a class="anchor" href="#head">§</a></h1>
<p>You are here: <a href="/">Home</a>. See <a href="/a">that</a>.</p>
<ul><li><a href="#a">One</a><ul><li><a href="#b">1.1 Two</a></li></ul></li><li><a href="#c">Three</a></li></ul>
<p>Choose of <a href="#a">one</a> and</p><ul><li><a href="/x">this</a></li><li><a href="/y">that</a></li></ul>
<p>More words follow, so that what is main is most of the page, as it should be in any page that has one.</p>
<table><tr><td><a href="p">Prev</a></td><td><a href="u">Up</a></td><td><a href="n">Next</a></td></tr></table>
<pre>&lt;a href="x"&gt;y&lt;/a&gt;</pre>
</main><footer>Made by a tool</footer></body>"""


def test_a_page_is_its_main_part_without_lists_of_links() -> None:
    (draft,) = read("a.html", PAGE.encode()).drafts
    assert draft.text == (
        "# Head\n\nYou are here: Home. See that.\n\nChoose of one and\n\n- this\n- that\n\n"
        "More words follow, so that what is main is most of the page, as it should be in any page that has one.\n\n"
        '```\n<a href="x">y</a>\n```'
    ).replace("\\\n", "\n")


def test_a_main_part_that_is_a_small_part_is_not_all() -> None:
    page = "<p>" + "Much is said before it. " * 20 + "</p><main>Search here</main><p>And behind it.</p>"
    assert "Much is said" in read("a.html", page.encode()).drafts[0].text


def test_a_page_of_links_alone_stays() -> None:
    page = "".join(f"<p><a href='{n}'>Page {n}</a></p>" for n in range(9))
    assert read("a.html", page.encode()).drafts[0].text.startswith("Page 0\n\nPage 1")


MARKDOWN = """<!--
Copyright 2026 The Authors. SPDX-License-Identifier: MIT
-->
[![ci](https://x.example/ci.svg)](https://x.example/ci) [![docs](d.svg)](docs "Docs")
![licence](l.svg)

# Title

- [Install](#install)
  - [From source](#source)
- [Use](#use)

A [link](a) in prose.

- [One](1): what it does
- [Two](2)
- [Three](3)

```
- [a](a)
- [b](b)
- [c](c)
```

Both of

- [this](a)
- [that](b)

[a]: https://x.example/a
[b]: https://x.example/b
[c]: https://x.example/c
"""


def test_markdown_loses_contents_badges_and_targets_alone() -> None:
    (draft,) = read("a.md", MARKDOWN.encode()).drafts
    assert draft.text == MARKDOWN[MARKDOWN.index("# Title") : MARKDOWN.index("[a]:")].replace(
        "- [Install](#install)\n  - [From source](#source)\n- [Use](#use)\n\n", ""
    )
    long = "".join(f"- [{'How one does what is asked for in the third part of it ' * 2}](#{n})\n" for n in range(9))
    assert read("a.md", long.encode()).drafts[0].text == long, "what is long tells something"


@given(st.text(st.characters(exclude_characters="[]<:"), max_size=300))
def test_a_text_without_links_is_verbatim(text: str) -> None:
    assert without_link_lists(text, _LINK) == text


def test_a_licence_at_the_head_of_code_is_left_out_and_a_description_stays() -> None:
    licence = "/*\n * Copyright 2026.\n * Licensed under the Apache License.\n */\n\n"
    described = "/* What this does. */\n\nint main(void)\n{\n}\n"
    text = read("a.c", (licence + described).encode()).drafts[0].text
    assert "Copyright" not in text and "What this does." in text
    assert "What this does." in read("a.c", described.encode()).drafts[0].text
    assert "int main" in read("a.c", b"// licensed\nint main(void)\n{\n}\n").drafts[0].text
