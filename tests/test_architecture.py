"""Guards the numbers and directions of the code. `BROKEN` and `OBEYED` prove that each rule can fail and pass."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.architecture import BUDGET, EXCUSED, PRODUCT, ROOT, RULES, Source, broken, load
from tests.file_map import PAGE, with_map
from tests.import_cycles import file_cycle, folder_cycle


@pytest.mark.parametrize("name", RULES)
def test_the_code_has_no(name: str) -> None:
    places = broken(RULES[name], load(ROOT))
    found = "".join(places[place] for place in places if place not in EXCUSED.get(name, {}))
    assert not found, found


def test_no_files_import_each_other() -> None:
    assert file_cycle(load(ROOT)) == []


def test_no_folders_import_each_other() -> None:
    assert folder_cycle(load(ROOT)) == []


def test_every_excuse_has_a_reason_and_is_needed() -> None:
    for name, excused in EXCUSED.items():
        needed = broken(RULES[name], load(ROOT))
        assert {place: reason for place, reason in excused.items() if not reason or place not in needed} == {}


def test_packages_stay_within_their_lines() -> None:
    sizes = {package: lines_of(package, load(ROOT)) for package in PRODUCT}
    assert BUDGET.keys() == sizes.keys()
    grown = {package: f"{lines} lines, the budget is {BUDGET[package]}" for package, lines in sizes.items()}
    assert {package: grown[package] for package in sizes if sizes[package] > BUDGET[package]} == {}


def lines_of(package: str, sources: tuple[Source, ...]) -> int:
    """Lines of a package's files; of those that are its tests none."""
    own = [each for each in sources if each.path.parts[0] == package and not each.module.startswith("tests.")]
    return sum(len(source.text.splitlines()) for source in own)


def test_the_map_names_every_file() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_map(page), "`make fmt` writes it anew"


def test_lines_of_a_package_are_counted_without_its_tests(tmp_path: Path) -> None:
    files = {"clients/a/src/a.py": "x = 1\n\n", "clients/a/tests/test_a.py": "x = 1\n", "store/b.py": "x = 1\n"}
    sources = written(tmp_path, files)
    assert [lines_of(package, sources) for package in ("clients", "store", "blend")] == [2, 1, 0]


def test_no_file_names_a_folder_of_somebodys_machine() -> None:
    """All files that git holds or would add. Folders that exist everywhere are fine."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    files = [ROOT / name for name in listed if (ROOT / name).is_file()]
    assert Path(__file__).resolve() in files
    assert {file.name: found for file in files if (found := machine_paths(file.read_bytes()))} == {}


def machine_paths(content: bytes) -> list[bytes]:
    return re.findall(rb"(?<![\w.*<>{}-])/(?:work|root|home/\w+|Users/\w+)/[\w./-]*", content)


BROKEN = [
    ("long_files", "tests/a.py", "x = 1\n" * 401),
    ("long_functions", "tests/a.py", "class A:\n  async def f(self):\n" + "    x = 1\n" * 50),
    ("import_directions", "store/a.py", "import torch.nn"),
    ("import_directions", "store/a.py", "from blend import fuse"),
    ("import_directions", "retriever/a.py", "import store.record"),
    ("import_directions", "retriever/a.py", "if TYPE_CHECKING:\n  from transformers import AutoModel"),
    ("import_directions", "retriever/a.py", "from retriever.embedders.encoder import Encoder"),
    ("import_directions", "blend/a.py", "from store import lmdb"),
    ("import_directions", "blend/run/a.py", "import triton.language as tl"),
    ("import_directions", "blend/a.py", "from ..service.settings import Settings"),
    ("import_directions", "service/a.py", "def f():\n  from store.lmdb import LmdbStore"),
    ("import_directions", "service/a.py", "importlib.import_module('store.lmdb')"),
    ("import_directions", "service/api/a.py", "from service.lab.eval.grid import grid"),
    ("import_directions", "service/commands/a.py", "def f():\n  import service.lab.demo.race"),
    ("import_directions", "clients/sdk/src/a.py", "import store.record"),
    ("impure_records", "store/record.py", "from . import lmdb"),
    ("impure_records", "store/__init__.py", "from store.lmdb import LmdbStore"),
    ("broad_handlers", "tests/a.py", "try: pass\nexcept: pass"),
    ("broad_handlers", "store/a.py", "try: pass\nexcept (ValueError, Exception): pass"),
    ("broad_handlers", "tests/a.py", "with suppress(BaseException): pass"),
    ("missing_docstrings", "tests/__init__.py", "x = 1"),
    ("environment_readers", "service/a.py", "x = os.environ.get('X')"),
    ("environment_readers", "store/a.py", "from os import getenv"),
    ("deferred_imports", "service/a.py", "def f(): import json"),
    ("deferred_imports", "store/a.py", "try: import json\nexcept ImportError: pass"),
    ("long_signatures", "store/a.py", "def f(a, b, c): pass"),
    ("long_signatures", "store/a.py", "class A:\n  def __init__(self, a, b, c): pass"),
    ("long_signatures", "store/a.py", "def f(a, *, b, c, d, e, f): pass"),
    ("any_in_signatures", "store/a.py", "def f(a: 'dict[str, typing.Any]') -> None: pass"),
]
OBEYED = [
    ("long_files", "tests/a.py", "x = 1\n" * 400),
    ("long_functions", "tests/a.py", "def f():\n" + "    x = 1\n" * 49),
    ("import_directions", "retriever/embedders/encoder.py", "import torch"),
    ("import_directions", "blend/a.py", "import torch\nfrom store import record"),
    ("import_directions", "blend/kernels/a.py", "from numba import njit"),
    ("import_directions", "service/app/composition.py", "from store.lmdb import LmdbStore"),
    ("import_directions", "service/cli.py", "from service.lab.commands.bench import bench"),
    ("import_directions", "service/lab/a.py", "from service.lab import b\nfrom service.app import core"),
    ("impure_records", "store/lmdb.py", "from store.blob_store import Store"),
    ("broad_handlers", "store/a.py", "try: pass\nexcept (KeyError, OSError): pass"),
    ("missing_docstrings", "store/__init__.py", ""),
    ("environment_readers", "service/settings.py", "import os\nx = os.environ"),
    ("deferred_imports", "service/app/composition.py", "def f(): import json"),
    ("deferred_imports", "service/commands/a.py", "def f(): import json"),
    ("deferred_imports", "store/a.py", "if TYPE_CHECKING:\n  import json"),
    ("long_signatures", "store/a.py", "class A:\n  def f(self, a, b, *, c, d, e): pass"),
    ("long_signatures", "service/cli.py", "@app.command()\ndef ask(a, *, b, c, d, e, f, g): pass"),
    ("any_in_signatures", "store/a.py", "def f(a: AnyStr) -> AnyStr: pass"),
]


def written(root: Path, files: dict[str, str]) -> tuple[Source, ...]:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    return load(root)


@pytest.mark.parametrize(("name", "path", "text"), BROKEN)
def test_a_broken_rule_is_found(name: str, path: str, text: str, tmp_path: Path) -> None:
    assert broken(RULES[name], written(tmp_path, {path: text}))


@pytest.mark.parametrize(("name", "path", "text"), OBEYED)
def test_an_obeyed_rule_is_silent(name: str, path: str, text: str, tmp_path: Path) -> None:
    assert broken(RULES[name], written(tmp_path, {path: text})) == {}


def test_every_rule_is_proved_both_ways() -> None:
    assert {name for name, *_ in BROKEN} == {name for name, *_ in OBEYED} == set(RULES)


@pytest.mark.parametrize(
    "importing",
    ["import store.d", "if TYPE_CHECKING:\n  import store.d", "def f():\n  from store import d"],
    ids=["top", "typing", "deferred"],
)
def test_a_cycle_of_files_is_found_also_through_a_package(importing: str, tmp_path: Path) -> None:
    files = {
        "store/__init__.py": "import store.b",
        "store/b.py": "import blend.a",
        "blend/a.py": importing,
    }
    assert {"store", "store.b", "blend.a"} <= set(file_cycle(written(tmp_path, files)))


def test_a_cycle_of_folders_is_found_where_no_files_import_each_other(tmp_path: Path) -> None:
    files = {
        "service/errors.py": "",
        "service/app/core.py": "import service.api.app",
        "service/api/__init__.py": "",
        "service/api/app.py": "import service.errors, service.documents.ingest",
        "service/api/limits.py": "",
        "service/documents/ingest.py": "from service.api import limits",
    }
    sources = written(tmp_path, files)
    assert file_cycle(sources) == []
    assert {"service/api", "service/documents"} == set(folder_cycle(sources))


def test_a_machine_path_is_found_and_a_part_of_one_is_not() -> None:
    assert machine_paths(b"see /%s/main, not teams/work/ or /var/lib/" % b"work") == [b"/%s/main" % b"work"]
