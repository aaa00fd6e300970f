"""Data folders for tests: how they are filled, and all that can be told of them."""

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from retriever.catalog.catalog import Catalog
from retriever.catalog.sqlite import SqliteCatalog
from retriever.documents import Document, DocumentPart
from retriever.filter_condition import EVERYTHING
from service.truth.control import Control

ROOT = Path(__file__).resolve().parents[3]


def catalog_file(data: Path, tenant: str) -> Path:
    return data / "tenants" / tenant / "catalog.sqlite"


def text(name: object) -> str:
    return f"the text of {name}, which is long enough to be worth something"


def put(data: Path, tenant: str, *names: str) -> None:
    catalog = SqliteCatalog(catalog_file(data, tenant))
    with catalog.change() as change:
        documents = [Document(name, (DocumentPart(text(name)),), f"Title {name}", {"of": tenant}) for name in names]
        change.put(documents, collection="c")
    catalog.close()


def change_all(catalog: Catalog, number: int) -> None:
    """One transaction that touches the first document, the last one and one more in between."""
    with catalog.change() as change:
        names = ("a", f"m{number:06}", "z")
        change.put(
            [Document(name, (DocumentPart(text((name, number))),), "", {"number": number}) for name in names],
            collection="c",
        )


def told(data: Path) -> dict[str, object]:
    """Of all tenants: documents with their passages, and what search finds."""
    found: dict[str, object] = {}
    for path in sorted(data.glob("tenants/*/catalog.sqlite")):
        catalog = SqliteCatalog(path)
        with catalog.view() as view:
            entries = view.documents(EVERYTHING, limit=10_000)
            hits = [hit.passage.id for hit in view.lexical("text worth something", EVERYTHING, limit=10_000)]
            found[path.parent.name] = (entries, [view.passages(each.id) for each in entries], hits)
        catalog.close()
    return found


def catalog_name(data: Path, tenant: str) -> str:
    catalog = SqliteCatalog(catalog_file(data, tenant))
    with catalog.view() as view:
        name = view.state().catalog
    catalog.close()
    return name


def opened(data: Path) -> Control:
    return Control(data / "control.sqlite")


def contents(data: Path) -> dict[str, bytes]:
    """Every file but the lock, which says nothing."""
    return {
        path.relative_to(data).as_posix(): path.read_bytes()
        for path in sorted(data.rglob("*"))
        if path.is_file() and path.name != "server.lock"
    }


@contextmanager
def child(*arguments: object) -> Generator[tuple[IO[str], IO[str]]]:
    """Its standard input and output. It is killed when the block ends."""
    command = [sys.executable, "-m", "tests.service.truth.child", *map(str, arguments)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        try:
            yield process.stdin, process.stdout
        finally:
            process.kill()
