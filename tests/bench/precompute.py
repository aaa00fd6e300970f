"""Measures `kvweave precompute` on a corpus of files: `python -m tests.bench.precompute PATH --files 200` prints JSON.

`bare`: seconds of the model's capture of the corpus's chunks alone, in the batches of the whole run, nothing packed or
stored. `whole`: seconds of a run from the files to a store that serves, model loaded and index empty, by stage.
`overhead`: how much longer the whole run takes, the median of the pairs; both are measured in turn, in one process.
`--kills 10` kills a run so often with SIGKILL at random moments, runs it to its end, and compares the store with that
of an undisturbed run. `--change 0.01` changes so many of the files and runs again. `--shape 24x896x2` takes a random
model, as `models.random_model` says.
"""

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from service.app.workspace import open_workspace
from service.documents.chunk_capture import batches
from service.documents.corpus_listing import CorpusFile, files
from service.documents.file_group import CorpusReader, Target, look
from service.documents.precompute import Precompute
from service.settings import Settings
from store.url import open_store
from tests.bench.models import random_model
from tests.service.test_precompute import held

START_S = 4.0  # before a process begins to read
KVWEAVE = (sys.executable, "-c", "from service.cli import main; main()")
Json = dict[str, Any]


def sample(paths: list[str], size: int) -> list[CorpusFile]:
    """So many files from all over the corpus; 0 for all."""
    found = [each for each in files(paths) if isinstance(each, CorpusFile)]
    return found[:: max(1, len(found) // size)][:size] if size else found


@contextmanager
def bench(folder: Path, model: str, threads: int) -> Iterator[Target]:
    """In a data folder of its own, made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    settings = Settings(data=folder, model=model, threads=threads)  # pyright: ignore[reportCallIssue]
    with open_workspace(settings, "default") as made:
        yield made


def bare(target: Target, found: list[CorpusFile]) -> Json:
    """The capture alone; the next batch waits while one is computed, as in the whole run."""
    state = look(target)
    items = [item for group in CorpusReader(target, state).groups(found) for item in group.items.values()]
    start, cpu, nbytes = time.perf_counter(), time.process_time(), 0
    coming = None
    for batch in [*batches(items), None]:
        running, coming = coming, batch and target.tenant.model.captured([item.chunk for item in batch])
        if running is not None:
            nbytes += sum(record.nbytes for record in running.result())
    return {
        "seconds": time.perf_counter() - start,
        "cpu_s": time.process_time() - cpu,
        "tokens": sum(len(item.chunk.all) for item in items),
        "chunks": len(items),
        "nbytes": nbytes,
    }


def whole(target: Target, found: list[CorpusFile]) -> Json:
    """From files to a store that serves."""
    start, cpu = time.perf_counter(), time.process_time()
    tally = Precompute(target).run(found, on_progress=lambda tally: None)
    told = {**asdict(tally), "problems": len(tally.problems)}
    return {"wall_s": time.perf_counter() - start, "cpu_s": time.process_time() - cpu, **told}


def overhead(arguments: argparse.Namespace, found: list[CorpusFile], *, model: str, folder: Path) -> Json:
    pairs: list[tuple[Json, Json]] = []
    for number in range(arguments.repeats + 1):
        with bench(folder / "data", model, arguments.threads) as made:
            first = bare(made, found)
            pairs.append((first, whole(made, found)))
        if not number:
            pairs.clear()  # it warmed up
    ratios = [after["wall_s"] / before["seconds"] - 1 for before, after in pairs]
    cpus = [after["cpu_s"] / before["cpu_s"] - 1 for before, after in pairs]
    before, after = pairs[len(pairs) // 2]
    return {
        "overhead": statistics.median(ratios),
        "overheads": ratios,
        "overhead_cpu": statistics.median(cpus),
        "tokens_per_s": before["tokens"] / before["seconds"],
        "kv_mb_per_s": before["nbytes"] / before["seconds"] / 1e6,
        "bare": before,
        "whole": after,
    }


class Place:
    """A data folder, where runs are processes of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environment = {**os.environ, "KVWEAVE_DATA": str(folder)}

    def start(self, paths: list[str]) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [*KVWEAVE, "precompute", *paths, "--json", "--prune"], env=self._environment, stdout=subprocess.PIPE
        )

    def run(self, paths: list[str]) -> Json:
        process = self.start(paths)
        out, _ = process.communicate()
        return {**json.loads(out.splitlines()[-1]), "exit": process.returncode}

    def holds(self) -> object:
        return held(self._folder, f"lmdb://{self._folder}/store")


def kills(times: int, paths: list[str], *, undisturbed: Place, whole_s: float, folder: Path) -> Json:
    chance, place, stored = random.Random(), Place(folder), list[int]()
    for _ in range(times):
        process = place.start(paths)
        time.sleep(chance.uniform(0.0, START_S + 2 * whole_s / times))  # so that the last ones too meet work
        process.send_signal(signal.SIGKILL)
        process.communicate()
        with open_store(f"lmdb://{folder}/store") as store:
            stored.append(store.usage()[-1].blobs)
    done = place.run(paths)
    return {
        "kills": times,
        "blobs_after_each": stored,
        "equal": place.holds() == undisturbed.holds(),
        "exit": done["exit"],
    }


def changed(share: float, folder: Path, *, place: Place) -> Json:
    """What a second run does after so many of the files got another paragraph."""
    texts = sorted(each for each in folder.rglob("*") if each.is_file())
    for path in texts[:: round(1 / share)]:
        path.write_bytes(path.read_bytes() + b"\n<p>This was written later than all the rest.</p>\n")
    done = place.run([str(folder)])
    names = ("files", "unchanged", "documents", "chunks", "stored", "tokens", "wall_s", "seconds")
    return {"changed": len(texts[:: round(1 / share)]), **{name: done[name] for name in names}}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--files", type=int, default=200, help="of the corpus; 0 for all")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--shape", default="")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--change", type=float, default=0.0)
    arguments = parser.parse_args()
    with TemporaryDirectory() as name:
        folder = Path(name)
        found = sample(arguments.paths, arguments.files)
        shown: Json = {"files": len(found), "shape": arguments.shape or "builtin"}
        if arguments.repeats:
            shown |= overhead(arguments, found, model=random_model(arguments.shape, folder / "model"), folder=folder)
        if arguments.kills or arguments.change:
            corpus = folder / "corpus"
            for each in found:
                (corpus / each.name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(each.path, corpus / each.name)
            undisturbed = Place(folder / "undisturbed")
            shown["first"] = undisturbed.run([str(corpus)])
            if arguments.kills:
                shown |= kills(
                    arguments.kills,
                    [str(corpus)],
                    undisturbed=undisturbed,
                    whole_s=shown["first"]["wall_s"],
                    folder=folder / "killed",
                )
            if arguments.change:
                shown["again"] = undisturbed.run([str(corpus)])
                shown["changed"] = changed(arguments.change, corpus, place=undisturbed)
    print(json.dumps(shown, indent=2))


if __name__ == "__main__":
    main()
