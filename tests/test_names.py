"""Names are unique, say what a file defines, and docstrings have a subject. `BROKEN` and `OBEYED` prove the rules."""

from pathlib import Path

import pytest

from tests.architecture import ROOT, broken, load
from tests.names import misnamed_files, prepositions_first, shared_class_names
from tests.test_architecture import written

PARSED = ("csv", "docx", "eml", "epub", "html", "ipynb", "pdf", "pptx", "rst", "scan", "xlsx")
EXCUSED = {
    "service/api/cache.py": "named after the resource, as its routes are",
    "service/commands/stores.py": "named after what its commands look after",
    **dict.fromkeys(
        [f"retriever/readers/parse_{each}.py" for each in PARSED],
        "a parser's function is `parse`, whatever it parses",
    ),
}

RULES = {rule.__name__: rule for rule in (misnamed_files, prepositions_first)}
BROKEN = [
    ("misnamed_files", "store/known.py", "class Table: ..."),
    ("misnamed_files", "store/lmdb/object_rows.py", "class BlobRow: ..."),
    ("prepositions_first", "store/a.py", '"""Of the blob."""'),
    ("prepositions_first", "clients/sdk/src/a.py", 'class A:\n  def f(self):\n    """As JSON."""'),
]
OBEYED = [
    ("misnamed_files", "store/eviction.py", "class Evictor: ..."),
    ("misnamed_files", "store/lmdb/lmdb_rows.py", "class BlobRow: ..."),
    ("misnamed_files", "retriever/catalog/schema.py", "def prepare(): ..."),
    ("misnamed_files", "clients/sdk/src/aio.py", "class Client: ..."),
    ("prepositions_first", "store/a.py", '"""The codec of every stored chunk."""'),
    ("prepositions_first", "tests/a.py", 'def f():\n  """Of a test."""'),
]


def test_public_classes_have_names_of_their_own() -> None:
    assert shared_class_names(load(ROOT)) == {}


@pytest.mark.parametrize("name", RULES)
def test_the_product_has_no(name: str) -> None:
    found = broken(RULES[name], load(ROOT))
    assert "".join(found[place] for place in found if place.partition(":")[0] not in EXCUSED) == ""


def test_a_name_that_stands_twice_is_found_within_the_server_and_within_a_client(tmp_path: Path) -> None:
    files = {
        "store/a.py": "class Row: ...\nclass _Kept: ...",
        "service/api/b.py": "class Row: ...\nclass _Kept: ...",
        "clients/one/src/a.py": "class Row: ...\nclass Job: ...",
        "clients/two/src/a.py": "class Row: ...",
        "clients/one/src/b.py": "class Job: ...",
        "tests/a.py": "class Job: ...",
    }
    found = shared_class_names(written(tmp_path, files))
    assert found == {
        ("server", "Row"): ["store/a.py", "service/api/b.py"],
        ("one", "Job"): ["clients/one/src/a.py", "clients/one/src/b.py"],
    }


@pytest.mark.parametrize(("name", "path", "text"), BROKEN)
def test_a_broken_rule_is_found(name: str, path: str, text: str, tmp_path: Path) -> None:
    assert broken(RULES[name], written(tmp_path, {path: text}))


@pytest.mark.parametrize(("name", "path", "text"), OBEYED)
def test_an_obeyed_rule_is_silent(name: str, path: str, text: str, tmp_path: Path) -> None:
    assert broken(RULES[name], written(tmp_path, {path: text})) == {}
