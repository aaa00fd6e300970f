"""Whether a picture is made of its figures alone."""

from pathlib import Path

from tests.bench.picture import Line, Panel, draw

PANEL = Panel("MB/s", "seconds", [Line("text", [(1, 2), (10, 2)]), Line("q4", [(1, 8), (10, 1)])], log="xy")


def test_the_same_figures_make_the_same_bytes(tmp_path: Path) -> None:
    one, other = tmp_path / "one.svg", tmp_path / "other.svg"
    draw([PANEL, PANEL], one)
    draw([PANEL, PANEL], other)
    assert one.read_bytes() == other.read_bytes()


def test_a_picture_names_its_lines_and_no_day(tmp_path: Path) -> None:
    draw([PANEL], tmp_path / "one.svg")
    svg = (tmp_path / "one.svg").read_text("utf-8")
    assert all(f">{name}<" in svg for name in ("MB/s", "seconds", "text", "q4"))
    assert "dc:date" not in svg
