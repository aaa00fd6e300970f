"""Guards the log of measurements: names and order of entries, its list, the form of new ones, the page of today."""

import re
from collections.abc import Iterator
from itertools import groupby

import pytest

from tests.architecture import ROOT

LOG = ROOT / "tests" / "bench" / "log"
LIST = LOG / "README.md"
MEASURED = ROOT / "docs" / "measured.md"
FREE = "2026-11-28-03"  # the last entry before this form
LINES, PAGE_LINES = 40, 150  # of an entry, of the page of what holds
POINTS = ["Asked", "Command", "Answer", "Kept"]

_NAME = re.compile(r"(\d{4}-\d\d-\d\d)-(\d\d)-[a-z0-9]+(?:-[a-z0-9]+)*")


def names() -> list[str]:
    """The entries, the oldest first."""
    return sorted(path.stem for path in LOG.iterdir() if path != LIST)


def text_of(name: str) -> str:
    return (LOG / f"{name}.md").read_text(encoding="utf-8")


def wrong_with(text: str) -> str:
    """What is wrong with the form of an entry; empty where nothing is."""
    if len(lines := text.splitlines()) > LINES:
        return f"{len(lines)} lines, at most {LINES}: what is more is another entry"
    head = text.partition("\n|")[0]
    if (points := re.findall(r"^- \*\*(\w+)\*\*: \S", head, re.MULTILINE)) != POINTS:
        return f"it begins with {points}: write {POINTS}"
    return ""


def listed() -> Iterator[str]:
    """What the list has to be: each entry's day, title and file, newest first."""
    for name in reversed(names()):
        day, _, title = text_of(name).partition("\n")[0].removeprefix("# ").partition(" ")
        yield f"- {day} [{title}]({name}.md)"


def test_entries_are_named_by_day_number_and_topic() -> None:
    assert [name for name in names() if not _NAME.fullmatch(name)] == []
    assert [name for name in names() if not text_of(name).startswith(f"# {name[:10]} ")] == []
    for day, of_day in groupby(names(), key=lambda name: name[:10]):
        numbers = [int(name[11:13]) for name in of_day]
        assert (day, numbers) == (day, [*range(1, len(numbers) + 1)])


def test_the_list_has_every_entry_newest_first() -> None:
    found = [line for line in LIST.read_text(encoding="utf-8").splitlines() if re.match(r"- \d{4}-", line)]
    assert found == [*listed()]


def test_new_entries_have_the_form_of_an_entry() -> None:
    wrong = {name: wrong_with(text_of(name)) for name in names() if name[: len(FREE)] > FREE}
    assert {name: each for name, each in wrong.items() if each} == {}


def rows_in(page: str) -> list[str]:
    """The claims of its tables."""
    tables = re.findall(r"^\|[-|]+\|\n((?:\|.*\n)+)", page, re.MULTILINE)
    return [row for table in tables for row in table.splitlines()]


def test_each_claim_of_today_is_a_row_that_leads_to_its_entry() -> None:
    page = MEASURED.read_text(encoding="utf-8")
    assert len(page.splitlines()) <= PAGE_LINES
    assert len(rows_in(page)) > 50
    assert [row for row in rows_in(page) if "](../tests/bench/log/2" not in row] == []


ENTRY = "# 2026-12-01 A title\n\n- **Asked**: what?\n- **Command**: `it`\n- **Answer**: so.\n- **Kept**: no.\n"


@pytest.mark.parametrize(
    "text",
    [
        ENTRY.replace("- **Asked**: what?\n", ""),
        ENTRY.replace("**Kept**: no.", "**Kept**:"),
        ENTRY + "\n" * LINES,
        "# 2026-12-01 A title\n\n| a table |\n|---|\n" + ENTRY,
    ],
)
def test_another_form_is_found(text: str) -> None:
    assert wrong_with(ENTRY) == ""
    assert wrong_with(text)
