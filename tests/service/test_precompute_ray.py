"""`kvweave precompute --executor ray`: what actors store is what a local run stores, whatever is lost on the way.

Ray binds all interfaces: what starts it runs with only loopback, in a process namespace that takes all with it.
"""

from __future__ import annotations

import functools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from service.builtin import CHECKPOINT
from service.settings import PREFIX
from store.blob import Blob
from store.blob_store import BlobStore
from store.codec.decode import decode
from store.codec.encode import encode
from store.errors import StoreError
from store.key import CacheKey
from store.reader import BlobReader
from store.record import LayerKV, Record
from store.url import open_store
from tests.servers.free_port import free_port
from tests.servers.s3 import moto_server
from tests.service.serving import KVWEAVE, wait_for
from tests.service.test_precompute import held

pytest.importorskip("ray", reason="needs the extra kvweave[ray]")

INSIDE = "TEST_APART"
# Who lives in mounts of its own would keep another test's disk from being unmounted.
DISKS = r"""sed -n 's|^/dev/loop[0-9]* \([^ ]*\) .*|\1|p' /proc/mounts | xargs -r umount -l 2>/dev/null"""
LOOPBACK = f'{DISKS}; ip link set lo up && "$@"; exit $?'
NAMESPACE = ("--net", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", LOOPBACK, "sh")
COMMANDS = (("unshare", *NAMESPACE), ("unshare", "--user", "--map-root-user", *NAMESPACE))
QUICK = {"period_ms": "500", "timeout_ms": "2000", "initial_delay_ms": "500", "failure_threshold": "4"}
RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_worker_niceness": "0",  # of 15, which beside other tests is no time at all
    **{f"RAY_health_check_{name}": value for name, value in QUICK.items()},
}
WAIT_S = 400
PROGRESS = re.compile(r"[\d.,]+ \w+ of [\d.,]+ \w+: ")


@functools.cache
def apart() -> tuple[str, ...]:
    """What runs a command with only loopback; whatever the command leaves behind is killed."""
    told = "needs the commands unshare and ip"
    for command in COMMANDS if shutil.which("unshare") and shutil.which("ip") else ():
        tried = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
        if tried.returncode == 0:
            return command
        told = tried.stderr.strip()
    pytest.skip(f"a network with only loopback cannot be had here: {told}")


def on_loopback(test: Callable[..., None]) -> Callable[..., None]:
    """The same test, in a pytest of its own."""

    @functools.wraps(test)
    def run(**given: object) -> None:
        if INSIDE in os.environ:
            test(**given)
            return
        name = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
        command = [*apart(), sys.executable, "-m", "pytest", "-m", "long or not long", "-p", "no:cacheprovider", name]
        environment = {**os.environ, INSIDE: "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False)
        assert done.returncode == 0, f"{done.stdout[-20_000:]}\n{done.stderr[-2000:]}"

    return run


def corpus(folder: Path, *, files: int) -> Path:
    """Of a few hundred words each."""
    chance = random.Random(5)
    root = folder / "corpus"
    root.mkdir()
    for number in range(files):
        words = " ".join(chance.choices(["river", "lamp", "coin", "harbor", "signal"], k=chance.randint(200, 600)))
        (root / f"{number}.md").write_text(f"# Part {number}\n\n{words}.\n", encoding="utf-8")
    return root


class Place:
    """A data folder and a store of their own."""

    def __init__(self, folder: Path, *, store: str = "", **settings: str) -> None:
        self.data = folder / "data"
        self.store = store or f"lmdb://{folder}/store"
        self._settings = {PREFIX + name.upper(): value for name, value in settings.items()}

    def start(self, root: Path, *options: str, **more: str) -> subprocess.Popen[str]:
        """`more` is of the environment."""
        others = {name: value for name, value in os.environ.items() if not name.startswith((PREFIX, "RAY_"))}
        ours = {"KVWEAVE_DATA": str(self.data), "KVWEAVE_STORE": self.store, "OMP_NUM_THREADS": "1", **self._settings}
        return subprocess.Popen(
            [*KVWEAVE, "precompute", str(root), *options],
            env={**others, **RAY, **ours, **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, root: Path, *options: str, status: int = 0, **more: str) -> tuple[list[str], list[str]]:
        """The lines that it prints, and those of its errors."""
        process = self.start(root, *options, **more)
        try:
            out, err = process.communicate(timeout=WAIT_S)
        finally:
            process.kill()
        assert process.returncode == status, out + err
        return out.splitlines(), own_lines(err)

    def stored(self, root: Path, *options: str, **more: str) -> int:
        """How many a run stored."""
        out, _ = self.run(root, *options, "--json", status=0, **more)
        return json.loads(out[-1])["stored"]

    def blobs(self) -> int:
        """That are stored by now."""
        with suppress(StoreError), open_store(self.store) as store:
            return store.usage()[-1].blobs
        return 0

    def holds(self) -> tuple[dict[str, bytes], dict[str, list[str]]]:
        return held(self.data, self.store)


class Cluster:
    """Nodes of a CPU each, at 127.0.0.1, 127.0.0.2 and so on; the first is the head."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._nodes = 0
        self.address = f"127.0.0.1:{free_port()}"

    def add(self, *, cpus: int = 1, before: str = "") -> None:
        """Another node. `before` runs in its own mounts: a command of the shell that changes what the node sees."""
        self._nodes += 1
        port = self.address.rpartition(":")[2]
        joined = ("--head", f"--port={port}", f"--temp-dir={self._folder}", "--include-dashboard=false")
        command = [
            *(sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start", f"--num-cpus={cpus}"),
            *("--object-store-memory=100000000", f"--node-ip-address=127.0.0.{self._nodes}"),
            *(joined if self._nodes == 1 else (f"--address={self.address}",)),
        ]
        if before:
            command = ["unshare", "--mount", "sh", "-c", f'{before} && exec "$@"', "sh", *command]
        log = self._folder / f"node{self._nodes}.log"
        with log.open("wb") as out:
            subprocess.run(command, env={**os.environ, **RAY}, stdout=out, stderr=out, check=True, timeout=120)

    def kill(self, number: int) -> None:
        """Its raylet and all that came from it, as a power cut does."""
        [raylet] = [
            pid
            for pid, line in processes().items()
            if line[0].endswith("/raylet") and f"--node_ip_address=127.0.0.{number}" in line
        ]
        for pid in (raylet, *below(raylet)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def short_folder() -> Generator[Path]:
    """The paths of Ray's sockets must be short."""
    with tempfile.TemporaryDirectory(prefix="kv", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@contextmanager
def cluster(*, nodes: int = 2) -> Generator[Cluster]:
    with short_folder() as folder:
        made = Cluster(folder)
        for _ in range(nodes):
            made.add()
        yield made


def processes() -> dict[int, list[str]]:
    """The command lines of all that live in this namespace."""
    found: dict[int, list[str]] = {}
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if line := file.read_bytes():
                found[int(file.parent.name)] = line.decode(errors="replace").rstrip("\0").split("\0")
    return found


def below(pid: int) -> Iterator[int]:
    """Its children, and theirs."""
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, file.read_text().split()):
                yield child
                yield from below(child)


def actors() -> list[str]:
    """Processes of actors that compute."""
    return [line[0] for line in processes().values() if "_Actor" in line[0]]


def change_weights(file: Path) -> None:
    """One byte of the last of them."""
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def negated(store: BlobStore, key: CacheKey) -> Blob:
    """A sound blob, whose keys no model computes."""
    found = store.open(key)
    assert isinstance(found, BlobReader)
    layers = [each and LayerKV(-each.keys, each.values) for each in decode(found).layers]
    return encode(Record("float32", tuple(layers)), key, terms=found.head.terms)


def own_lines(text: str) -> list[str]:
    """Without what Ray's core says of a machine that reaches no other, the bar of a model that loads, and what a local
    run says first of its cost.
    """
    others = ("external connectivity", "Loading weights", "1 MB of text")
    return [line for line in text.splitlines() if line and not any(other in line for other in others)]


@on_loopback
def test_a_cluster_stores_what_a_local_run_does_and_says_no_more(tmp_path: Path) -> None:
    root, local, spread = corpus(tmp_path, files=4), Place(tmp_path / "local"), Place(tmp_path / "spread")
    beside = local.start(root)
    with cluster(nodes=1) as found:
        process = spread.start(root, "--executor", "ray", RAY_ADDRESS=found.address)
        out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, err
    assert beside.wait(WAIT_S) == 0
    alone = beside.communicate()[1]
    assert spread.holds() == local.holds()
    here, there = ([line for line in own_lines(each) if not PROGRESS.match(line)] for each in (alone, err))
    assert here == there
    assert "4 files, 0 of them unchanged\n4 documents put in" in out
    wait_for(lambda: not actors(), "no actor is left")


@pytest.mark.long
@on_loopback
def test_two_nodes_store_on_s3_what_a_local_run_stores(tmp_path: Path) -> None:
    root, local = corpus(tmp_path, files=24), Place(tmp_path / "local")
    local.run(root)
    with moto_server() as server, cluster() as found:
        spread = Place(tmp_path / "spread", store=server.url("ray"))
        assert spread.stored(root, "--executor", "ray", RAY_ADDRESS=found.address) == local.blobs()
        assert spread.holds() == local.holds()
        assert spread.stored(root, "--executor", "ray", RAY_ADDRESS=found.address) == 0


@pytest.mark.long
@on_loopback
def test_a_node_lost_in_the_middle_changes_nothing_of_the_end(tmp_path: Path) -> None:
    root, local, spread = corpus(tmp_path, files=60), Place(tmp_path / "local"), Place(tmp_path / "spread")
    local.run(root)
    when = random.SystemRandom().randint(1, local.blobs() * 2 // 3)
    with cluster() as found:
        process = spread.start(root, "--executor", "ray", RAY_ADDRESS=found.address)
        wait_for(lambda: spread.blobs() >= when or process.poll() is not None, f"{when} are stored")
        assert process.poll() is None, when
        found.kill(2)
        out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, (when, out, err)
    assert spread.holds() == local.holds(), when
    assert "Traceback" not in err, err


@pytest.mark.long
@on_loopback
def test_a_driver_that_was_killed_goes_on_here_or_there(tmp_path: Path) -> None:
    root, local, spread = corpus(tmp_path, files=40), Place(tmp_path / "local"), Place(tmp_path / "spread")
    local.run(root)
    with cluster() as found:
        for _ in range(2):
            when = random.SystemRandom().randint(spread.blobs() + 1, local.blobs() - 20)
            process = spread.start(root, "--executor", "ray", RAY_ADDRESS=found.address)
            wait_for(lambda when=when: spread.blobs() >= when, f"{when} are stored")
            process.kill()
            process.communicate()
            wait_for(lambda: not actors(), "its actors are gone")
        spread.run(root, "--executor", "ray", RAY_ADDRESS=found.address)
        assert spread.holds() == local.holds()
    shutil.rmtree(tmp_path / "spread")
    with cluster() as found:
        process = spread.start(root, "--executor", "ray", RAY_ADDRESS=found.address)
        wait_for(lambda: spread.blobs() >= 1, "some are stored")
        process.kill()
        process.communicate()
        spread.run(root)
    assert spread.holds() == local.holds()


@pytest.mark.long
@on_loopback
def test_ctrl_c_ends_it_and_leaves_no_actor(tmp_path: Path) -> None:
    root, spread = corpus(tmp_path, files=200), Place(tmp_path)
    with cluster() as found:
        process = spread.start(root, "--executor", "ray", RAY_ADDRESS=found.address)
        wait_for(lambda: spread.blobs() >= 20, "some are stored")
        assert actors()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 130
        assert "Traceback" not in err, err
        wait_for(lambda: not actors(), "its actors are gone")


HINDERED = {
    "another model": ("mount --bind {folder}/other {folder}/model", "another model"),
    "no model": ("mount --bind {folder}/nothing {folder}/model", "neither a checkpoint's folder nor a hub name"),
    "no writing": (
        "mount --bind {folder}/files {folder}/files && mount -o remount,ro,bind {folder}/files",
        "Read-only",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("what", HINDERED)
@on_loopback
def test_a_node_that_cannot_do_what_the_driver_can_ends_the_run_in_one_line(tmp_path: Path, what: str) -> None:
    before, told = HINDERED[what]
    for name in ("model", "other"):
        shutil.copytree(CHECKPOINT, tmp_path / name)
    (tmp_path / "nothing").mkdir()
    change_weights(tmp_path / "other/model.safetensors")
    root = corpus(tmp_path, files=4)
    spread = Place(tmp_path, store=f"file://{tmp_path}/files", model=str(tmp_path / "model"))
    with cluster(nodes=0) as found:
        found.add(cpus=0)
        (tmp_path / "files").mkdir()
        found.add(before=before.format(folder=tmp_path))
        _, [line] = spread.run(root, "--executor", "ray", status=2, RAY_ADDRESS=found.address)
    assert line.startswith("kvweave: ") and " node " in line and told in line, line
    assert spread.holds()[0] == {}


@pytest.mark.long
@on_loopback
def test_a_store_that_goes_away_ends_the_run_in_one_line(tmp_path: Path) -> None:
    root = corpus(tmp_path, files=60)
    with moto_server() as server, cluster() as found:
        spread = Place(tmp_path, store=server.url("ray", timeout_s=2))
        process = spread.start(root, "--executor", "ray", RAY_ADDRESS=found.address)
        wait_for(lambda: spread.blobs() >= 1, "some are stored")
        [moto] = [pid for pid, line in processes().items() if line[-1].endswith("servers/s3.py")]
        os.kill(moto, signal.SIGKILL)
        _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 2, err
    [line] = [each for each in own_lines(err) if not PROGRESS.match(each)]
    assert line.startswith("kvweave: ") and "s3://" in line


@pytest.mark.long
@on_loopback
def test_actors_write_under_a_fingerprint_that_was_made_new(tmp_path: Path) -> None:
    """Where a stored record is not what the model computes, the driver takes another one."""
    root, spread = corpus(tmp_path, files=1), Place(tmp_path)
    spread.run(root)
    with open_store(spread.store) as store:
        [*old] = store.entries()
        for entry in old:
            store.replace(negated(store, entry.key))
    with cluster(nodes=1) as found:
        assert spread.stored(root, "--executor", "ray", RAY_ADDRESS=found.address) == len(old)
    with open_store(spread.store) as store:
        assert len({entry.key.fingerprint for entry in store.entries()}) == 2
