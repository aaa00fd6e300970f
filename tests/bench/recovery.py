"""Measures how soon the service notices that its store became slow, and quick again: `python -m tests.bench.recovery`.

As tests/bench/bandwidth.py has it, q4 behind a link: prompts one after another over a quick link, a slow one and the
quick one again, each as the service chooses. A row for each: its way, seconds, and how many of these it waited for the
heads of blobs.
"""

import argparse
import asyncio
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from retriever.documents import chunk_id
from service.settings import Settings
from tests.bench.in_process import first_token, made_up, precompute, serving
from tests.bench.link import Link, behind
from tests.bench.models import random_model

CHUNK = 256  # tokens


def measure(folder: Path, options: argparse.Namespace) -> None:
    link, model = Link(), random_model(options.shape, folder / "model")
    (folder / "store").mkdir()
    given = {"data": folder / "data", "store": f"file://{folder}/store", "model": model, "auth": False, "codec": "q4"}
    settings = Settings(**given, embedder="none", threads=options.threads)
    over = partial(behind, link=link)
    with serving(settings, over) as core:
        texts = [made_up(core, CHUNK, number=number) for number in range(options.chunks)]
    precompute(settings, folder, texts=texts)
    print("| MB/s | way | first token s | of these waited s | expected: full, blended |\n|---|---|---|---|---|")
    with serving(settings, over) as core, asyncio.Runner() as runner:
        for speed, count in ((options.quick, 4), (options.slow, options.prompts), (options.quick, options.prompts)):
            link.hold(speed)
            for _ in range(count):
                ms, report = runner.run(first_token(core, [chunk_id(each) for each in texts], None))
                way, waited = report.policy.partition("/")[0], report.timings_ms["fetch"]
                expected = ", ".join(f"{report.expected_ms.get(name, 0) / 1000:.2f}" for name in ("full", "blend"))
                print(f"| {speed:g} | {way} | {ms / 1000:.2f} | {waited / 1000:.2f} | {expected} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="24x256")
    parser.add_argument("--chunks", type=int, default=4)
    parser.add_argument("--quick", type=float, default=100, help="MB/s")
    parser.add_argument("--slow", type=float, default=0.3)
    parser.add_argument("--prompts", type=int, default=40, help="over the slow link, and over the quick one after it")
    parser.add_argument("--threads", type=int, default=1)
    with TemporaryDirectory() as folder:
        measure(Path(folder), parser.parse_args())


if __name__ == "__main__":
    main()
