"""Follows the relative links of the pages: each leads to a file, and its anchor to a heading. Asks no network."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / name / "README.md" for name in ("blend", "retriever", "retriever/recognition", "service/builtin")),
    *sorted((ROOT / "tests" / "bench" / "log").glob("*.md")),
    *sorted((ROOT / "clients").glob("*/README.md")),
]


def prose_of(markdown: str) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```", "", markdown, flags=re.MULTILINE | re.DOTALL)


def links_in(markdown: str) -> list[str]:
    """The targets of links and pictures in prose, those of other places left out."""
    prose = re.sub(r"`[^`\n]*`", "", prose_of(markdown))
    found = [*re.findall(r"\]\(([^)\s]+)\)", prose), *re.findall(r"^\[[^\]]+\]: (\S+)$", prose, re.MULTILINE)]
    return [each for each in found if not re.match(r"[a-z]+:", each)]


def anchors_in(markdown: str) -> set[str]:
    """What GitHub names the headings: lower case, without punctuation, blanks as hyphens; another of a name counts."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", prose_of(markdown), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        anchor = name = re.sub(r"[^\w -]", "", text).strip().lower().replace(" ", "-")
        again = 0
        while anchor in found:
            again += 1
            anchor = f"{name}-{again}"
        found.add(anchor)
    return found


def is_dead(link: str, page: Path) -> bool:
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.exists():
        return True
    return bool(anchor) and anchor not in anchors_in(target.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    assert [link for link in links_in(page.read_text(encoding="utf-8")) if is_dead(link, page)] == []


SAMPLE = """
# The `store`, in short

[a](b.md), ![a picture](c.svg) and [a
link](d.md#e-f), [there](https://example.org/x.md), `[no](link.md)`

```
# no heading
[no](link.md)
```

## Twice
## Twice

[named]: e.md
"""


def test_links_and_headings_are_those_of_the_prose() -> None:
    assert links_in(SAMPLE) == ["b.md", "c.svg", "d.md#e-f", "e.md"]
    assert anchors_in(SAMPLE) == {"the-store-in-short", "twice", "twice-1"}


def test_a_dead_link_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Here\n", encoding="utf-8")
    assert [link for link in ("page.md", "#here", "page.md#here") if is_dead(link, page)] == []
    assert [link for link in ("gone.md", "#gone", "page.md#gone") if not is_dead(link, page)] == []
