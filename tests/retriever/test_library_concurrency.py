"""One writer and eight readers, in threads and in processes: each result is of one committed state, none older than
the one before."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Barrier

import pytest

from retriever import nearest
from retriever.catalog.sqlite import SqliteCatalog
from retriever.embedders.embedding import Embedders
from retriever.library import Library
from tests.retriever.concurrency_child import Reader, write
from tests.retriever.fakes import WordEmbedder

ROOT = Path(__file__).resolve().parents[2]
READERS = 8
MAINTAINED = 7  # generations


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    """With the first generation in it."""
    monkeypatch.setattr(nearest, "FLAT", 12)
    monkeypatch.setattr(nearest, "FEWEST_PROBED", 1 << 20)
    with closing(SqliteCatalog(tmp_path / "catalog.sqlite")) as catalog:
        library = Library(catalog, tmp_path / "index", embedders=Embedders(WordEmbedder()))
        write(library, 0)
        yield library


def write_all(library: Library, last: int) -> None:
    for generation in range(1, last + 1):
        write(library, generation)
        if generation % MAINTAINED == 0:
            library.maintain()


@pytest.mark.parametrize("last", [40, pytest.param(1500, marks=pytest.mark.long)])
def test_eight_threads_see_one_generation_at_a_time(library: Library, last: int) -> None:
    started = Barrier(READERS + 1)

    def read(seed: int) -> int:
        reader = Reader(library, seed)
        started.wait(60)
        while reader.generation < last:
            reader.look()
        return reader.looks

    with ThreadPoolExecutor(READERS) as pool:
        looks = [pool.submit(read, seed) for seed in range(READERS)]
        started.wait(60)
        write_all(library, last)
        assert all(each.result() for each in looks)


@pytest.mark.parametrize("last", [60, pytest.param(3000, marks=pytest.mark.long)])
def test_eight_processes_see_one_generation_at_a_time(library: Library, tmp_path: Path, last: int) -> None:
    with ExitStack() as stack:
        readers: list[subprocess.Popen[str]] = []
        for seed in range(READERS):
            command = [sys.executable, "-m", "tests.retriever.concurrency_child", str(tmp_path), str(seed), str(last)]
            process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            readers.append(stack.enter_context(process))
            stack.callback(process.kill)
        for reader in readers:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "ready\n"
        write_all(library, last)
        for reader in readers:
            said, wrong = reader.communicate()
            assert reader.returncode == 0, wrong
            assert int(said) > 1
