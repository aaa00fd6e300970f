"""The example of retriever's page runs as it stands."""

import re
from pathlib import Path

from retriever.readers.files import SUFFIXES
from retriever.search import Hit

PAGE = (Path(__file__).resolve().parents[2] / "retriever" / "README.md").read_text("utf-8")


def test_the_example_of_the_page_runs(tmp_path: Path) -> None:
    [example] = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "notice.md").write_text("# Leaving\n\nGive notice by letter, a month ahead.\n")
    (corpus / "pay.txt").write_text("Pay comes on the last day of a month.\n")
    known: dict[str, object] = {"folder": tmp_path, "corpus": corpus}

    exec(example, known)

    hits: list[Hit] = known["hits"]  # type: ignore[assignment]
    assert hits[0].passage.document == "notice.md"
    assert [each.passage.id for each in known["pasted"]] == [hits[0].passage.id]  # type: ignore[attr-defined]
    assert known["removal"].gone == (hits[0].passage.id,)  # type: ignore[attr-defined]
    known["catalog"].close()  # type: ignore[attr-defined]


def test_the_page_names_every_suffix() -> None:
    assert [suffix for suffix in SUFFIXES if f"`{suffix}`" not in PAGE] == []
