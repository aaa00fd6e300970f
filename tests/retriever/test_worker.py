"""Contents that are read well share a process. What one does to its process hurts no other."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Barrier

import pytest

from retriever.readers import worker
from retriever.readers.files import read
from retriever.readers.reading import UnreadableFile
from retriever.readers.serve import Findings
from tests.retriever.test_files import PAGE, encrypted, pdf

ROOT = Path(__file__).parent.parent.parent
WITHIN_S = 60.0
LARGE = b"x" * 20_000_000
FILES = {
    "a.html": PAGE.encode(),
    "b.html": b"<title>B</title><h1>b</h1><ul><li>1<li>2</ul>" * 500,
    "c.html": b"",
    "a.pdf": pdf(["One page.", "Two pages."]),
    "b.pdf": encrypted(pdf(["One page."]), ""),
    "c.pdf": b"no PDF",
}

OBEDIENT = """
import os, signal, sys
alive = open({alive!r}, "wb", buffering=0)  # by its workers
from retriever.readers.serve import Findings

def spin():
    while True:
        pass

def hang():
    alive.write(b"h")
    signal.pause()

def chatter():
    print("out")
    print("err" * 100_000, file=sys.stderr)

left = []

DEEDS = dict(
    abort=os.abort,
    chatter=chatter,
    exit=lambda: os._exit(3),
    hang=hang,
    kill=lambda: os.kill(os.getpid(), signal.SIGKILL),
    leave=lambda: left.append(1),
    trace=lambda: os.environ["RUST_BACKTRACE"] == "0" or os.abort(),
    raises=lambda: 1 / 0,
    spin=spin,
    swell=lambda: bytes(1 << 42),
    trip=lambda: left and os.abort(),
)

def parse(content):
    DEEDS.get(content[:9].strip(b"\\0").decode(), str)()
    return Findings((content.decode(),), author=str(os.getpid()))
"""
ASKING = """
import os, sys
from retriever.readers import worker
"""
KILLED = ASKING + "print(worker.ask('obedient', b'x').author, flush=True); worker.ask('obedient', b'hang')"
FORKING = (
    ASKING
    + """
before = worker.ask('obedient', b'x')
if not os.fork():
    sys.exit()  # an idle worker is left alone
os.wait()
pid = os.fork()
mine = worker.ask('obedient', b'x')
assert (mine.author == before.author) is bool(pid), (pid, mine, before)
if pid:
    assert os.waitpid(pid, 0)[1] == 0
    assert worker.ask('obedient', b'x').author == before.author
    worker.close()
    try:
        os.wait()
    except ChildProcessError:
        print('nothing left')
"""
)


@dataclass(frozen=True, slots=True)
class Obedient:
    """A parser that does what its content says. `alive` is a pipe into which every process of its can write."""

    root: Path
    alive: int

    def ask(self, content: bytes) -> Findings:
        return worker.ask("obedient", content)

    def hear(self) -> bytes:
        """A byte of one of its processes, none when all have ended."""
        assert select.select([self.alive], [], [], WITHIN_S)[0]
        return os.read(self.alive, 1)


@pytest.fixture
def obedient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Obedient]:
    fifo = tmp_path / "alive"
    os.mkfifo(fifo)
    (tmp_path / "obedient.py").write_text(OBEDIENT.format(alive=str(fifo)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    worker.close()
    alive = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    yield Obedient(tmp_path, alive)
    worker.close()
    os.close(alive)


def test_contents_share_a_worker(obedient: Obedient) -> None:
    answers = [obedient.ask(b"%d" % number) for number in range(20)]
    assert [answer.pages for answer in answers] == [[str(number)] for number in range(20)]
    assert len({answer.author for answer in answers}) == 1


def test_an_answer_is_the_same_from_a_new_worker_and_a_used_one() -> None:
    cold = {}
    for name, content in FILES.items():
        worker.close()
        cold[name] = read(name, content)
    for _ in range(2):
        assert {name: read(name, content) for name, content in FILES.items()} == cold


@pytest.mark.parametrize(
    ("deed", "reason"),
    [
        (b"abort", "ended with SIGABRT within 2,048 MiB"),
        (b"exit", r"gave up within .*no reason given"),
        (b"hang", "did not finish within 1 s"),
        (b"kill", "ended with SIGKILL"),
        (b"spin", "1 s of processor time"),
    ],
)
def test_a_process_that_fails_is_a_reason_and_the_next_is_well(
    deed: bytes, reason: str, obedient: Obedient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "CPU_S", 1 if deed == b"spin" else 100)
    monkeypatch.setattr(worker, "WALL_S", 1 if deed == b"hang" else WITHIN_S)
    for content in (deed, deed.ljust(300_000, b"\0")):
        assert obedient.ask(b"chatter").pages == ["chatter"]
        with pytest.raises(UnreadableFile, match=reason):
            obedient.ask(content)
    assert obedient.ask(b"next").pages == ["next"]


def test_a_parser_that_raises_is_a_problem_and_the_next_is_well(obedient: Obedient) -> None:
    for _ in range(2):
        assert obedient.ask(b"next").pages == ["next"]
        (problem,) = obedient.ask(b"raises").problems
        assert "gave up" in problem
        assert "ZeroDivisionError" in problem
    assert obedient.ask(b"next").pages == ["next"]


def test_a_process_that_swells_is_a_problem_and_the_next_is_well(
    obedient: Obedient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "2,048 MiB" in obedient.ask(b"swell").problems[0]
    assert obedient.ask(b"next").pages == ["next"]
    with monkeypatch.context() as patched:
        patched.setattr(worker, "MEMORY_BYTES", 64 << 20)
        assert "64 MiB" in obedient.ask(LARGE * 5).problems[0]
    assert obedient.ask(b"next").pages == ["next"]


def test_what_a_content_left_in_its_worker_is_not_the_next_ones_fault(obedient: Obedient) -> None:
    used = obedient.ask(b"x").author
    obedient.ask(b"leave")
    assert obedient.ask(b"x").author == used
    answer = obedient.ask(b"trip")
    assert answer.pages == ["trip"]
    assert answer.author != used


def test_a_parser_that_ends_in_the_midst_of_a_content_is_a_reason(obedient: Obedient) -> None:
    (obedient.root / "tired.py").write_text("import os\nos._exit(1)\n")
    with pytest.raises(UnreadableFile, match=r"gave up .*no reason given"):
        worker.ask("tired", LARGE)


def test_threads_have_workers_of_their_own_and_two_stay(obedient: Obedient) -> None:
    together = Barrier(5)

    def go(name: str) -> set[str]:
        together.wait(WITHIN_S)
        texts = [f"{name} {number} ".ljust(100_000, "x") for number in range(4)]
        answers = [obedient.ask(text.encode()) for text in texts]
        assert [answer.pages for answer in answers] == [[text] for text in texts]
        return {answer.author for answer in answers}

    with ThreadPoolExecutor(5) as pool:
        used = set[str]().union(*pool.map(go, "abcde"))
    assert 1 <= len(used) <= 10
    kept = {obedient.ask(b"next").author for _ in range(4)}
    assert len(kept) == 1
    assert kept <= used
    assert worker._idle["obedient"].qsize() <= 2  # pyright: ignore[reportPrivateUsage]


def test_an_idle_worker_that_was_killed_is_replaced(obedient: Obedient) -> None:
    killed = obedient.ask(b"x").author
    os.kill(int(killed), signal.SIGKILL)
    assert obedient.ask(LARGE).author != killed


def test_an_idle_worker_ends_by_itself_and_is_replaced(obedient: Obedient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "IDLE_S", 0.5)
    ended = obedient.ask(b"x").author
    assert obedient.hear() == b""
    assert obedient.ask(b"x").author != ended


def test_nothing_outlives_a_process_that_was_killed(obedient: Obedient) -> None:
    command = [sys.executable, "-c", KILLED]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as asking:
        assert asking.stdout
        assert asking.stdout.readline().strip().isdigit()
        assert obedient.hear() == b"h"
        asking.kill()
    assert obedient.hear() == b""


def test_who_wants_traces_of_rust_has_none_of_workers(obedient: Obedient, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is out of memory would wait for its own lock, until its time is over."""
    monkeypatch.setenv("RUST_BACKTRACE", "1")
    worker.close()
    obedient.ask(b"trace")


def test_a_fork_has_workers_of_its_own_and_nothing_is_left_at_the_end(obedient: Obedient) -> None:
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", FORKING]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, timeout=WITHIN_S)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"nothing left\n", b"")
    assert obedient.hear() == b""


def test_a_worker_leaves_no_open_file(obedient: Obedient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "WALL_S", 1)
    before = os.listdir("/dev/fd")  # noqa: PTH208 - a path of each would open one
    obedient.ask(b"x")
    for deed in (b"exit", b"hang"):
        with pytest.raises(UnreadableFile):
            obedient.ask(deed)
    obedient.ask(b"x")
    worker.close()
    assert os.listdir("/dev/fd") == before  # noqa: PTH208
