"""Memory that was used once goes back to the system, in calm moments alone."""

import ctypes
import resource
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from threading import Event

import pytest

from retriever.catalog import sqlite
from retriever.catalog.open_ahead import open_ahead
from retriever.catalog.sqlite import SqliteCatalog
from retriever.catalog.sqlite_connection import SqliteConnection
from retriever.documents import Document, DocumentPart
from retriever.upload_types import NewUpload
from service.app import give_back_memory as giving

ROOT = Path(__file__).parents[2]
LARGE, THREADS = 20_000_000, 4
PIECES, PIECE_BYTES = 2000, 100_000  # each below what the allocator asks the system for alone
FREEING = """
import resource
import threading

from service.app.give_back_memory import keep_freed_memory

def work():
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    for _ in range({rounds}):
        [bytearray(300_000) for _ in range(16)]
    print(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)

if {keeps}:
    keep_freed_memory()
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""  # in a thread, whose memory is not the main thread's


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="another allocator")
def test_memory_that_nobody_uses_goes_back_when_it_is_calm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(giving, "EVERY_S", 0.0)
    kept = [bytes(PIECE_BYTES) for _ in range(PIECES)][::20]  # what lies between is free
    seen: list[int] = []
    gone: list[None] = []
    rested = False

    def looks(stopped: Event, answers: list[bool]) -> None:
        def is_calm() -> bool:
            seen.append(resident_bytes())
            if not answers[1:]:
                stopped.set()
            return answers.pop(0)

        giving.give_back_memory(stopped, is_calm=is_calm, let_go=lambda: gone.append(None), rest=lambda: rested)

    looks(Event(), [False] * (giving.BUSY_LOOKS - 1))
    assert max(seen) - resident_bytes() < PIECES * PIECE_BYTES / 10  # somebody works
    assert not gone
    looks(Event(), [True])
    assert max(seen) - resident_bytes() > PIECES * PIECE_BYTES / 2 and len(gone) == 1
    more = [bytes(PIECE_BYTES) for _ in range(PIECES)][::20]
    looks(Event(), [False] * giving.BUSY_LOOKS)
    assert max(seen) - resident_bytes() > PIECES * PIECE_BYTES / 2  # now and then also then
    grown = resident_bytes()
    rested = bool(more := more[::2])  # what was given back the last time is given back again where somebody rested
    looks(Event(), [True])
    assert grown - resident_bytes() >= 0
    assert len(more) == PIECES / 40 and len(kept) == PIECES / 20


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="another allocator")
def test_what_is_freed_is_there_for_the_next() -> None:
    def faults(*, keeps: bool, **environment: str) -> int:
        """Of ten rounds, which the one before them left memory for."""

        def told(rounds: int) -> int:
            command = [sys.executable, "-c", FREEING.format(keeps=keeps, rounds=rounds)]
            return int(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)

        return told(11) - told(1)

    pages = 16 * 300_000 // resource.getpagesize()
    assert faults(keeps=True) < pages / 2
    assert faults(keeps=False) > pages
    assert faults(keeps=True, MALLOC_TRIM_THRESHOLD_="131072") > pages  # somebody wants it so


def looked(catalog: SqliteCatalog) -> int:
    """The resident bytes after some looks in calm moments."""
    stopped, looks = Event(), count()

    def is_calm() -> bool:
        if next(looks) == 3:
            stopped.set()
        return True

    giving.give_back_memory(stopped, is_calm=is_calm, let_go=lambda: None, rest=catalog.rest)
    return resident_bytes()


def uploaded(folder: Path) -> tuple[int, int]:
    """How many resident bytes threads made more by large uploads, and how many are left when they have gone."""

    def upload(number: int) -> None:
        with catalog.view() as view, catalog.change() as change:  # a connection each, some for the first time
            change.accept(f"job{number}", [NewUpload(f"{number}", "c", "", b"x" * LARGE)])
            together = [bytearray(300_000) for _ in range(LARGE // 300_000)]  # of this thread's own
            assert view.counts().documents == 0 and len(together) > 1

    giving.EVERY_S = 0.0
    giving.keep_freed_memory()
    with closing(SqliteCatalog(folder / "catalog")) as catalog:
        before = looked(catalog)
        with ThreadPoolExecutor(THREADS) as threads:
            for _ in threads.map(upload, range(THREADS)):
                pass
            most = resident_bytes()
            return most - before, looked(catalog) - before


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="another allocator")
def test_what_large_uploads_took_is_given_back_by_connections_and_threads_alike(tmp_path: Path) -> None:
    told = f"from pathlib import Path; from {__name__} import uploaded; print(*uploaded(Path({str(tmp_path)!r})))"
    found = subprocess.run([sys.executable, "-c", told], cwd=ROOT, env={}, check=True, capture_output=True, text=True)
    most, left = map(int, found.stdout.split())
    assert most > 2 * LARGE
    assert left < LARGE / 4, f"{left >> 20} MiB of {most >> 20} are left"


def test_one_connection_alone_is_left_of_a_catalog_that_rests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a disk that has become full it could open none."""
    opened = list[SqliteConnection]()

    def open_counted(path: Path, *, wait_s: int) -> SqliteConnection:
        opened.append(open_ahead(path, wait_s=wait_s))
        return opened[-1]

    def are_open() -> int:
        found = 0
        for connection in opened:
            with suppress(sqlite3.ProgrammingError):
                found += connection.execute("SELECT 1").fetchone()[0]
        return found

    monkeypatch.setattr(sqlite, "open_ahead", open_counted)
    catalog = SqliteCatalog(tmp_path / "catalog")
    with catalog.view(), catalog.view(), catalog.view():
        assert not catalog.rest()
    assert not catalog.rest()  # all were used since
    with catalog.view():
        pass
    assert catalog.rest()
    assert are_open() == 1
    assert catalog.rest()  # its pages go
    assert not catalog.rest()
    for _ in range(3):
        with catalog.change() as change:
            change.put([Document("a", (DocumentPart("x"),))], collection="c")
        assert not catalog.rest()
    assert are_open() == len(opened[2:]) == 1
    catalog.close()
