"""A prompt of an 8B shape on its way into another process, over HTTP or by shared memory, whole or layer by layer.

    python -m tests.bench.handover [--tokens 2048] [--fuse 1.0] [--runs 3]

Milliseconds from the last layer's end in the fuse, which is only played here, until all layers stand in a paged cache.
`whole`: all layers are there at once, as behind a fuse; `layers`: one after the other, in the time of the fuse.
`seconds_of_cpu` are those of both processes, for one prompt.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import torch
from torch import Tensor

from blend.engine.engine import PlacedPrompt
from blend.run.context import Context, LayerShape
from service.vllm.handoff import Handoff
from service.vllm.handoffs import HandoffReaders
from tests.service.serving import Inside, in_process, settings_in
from vllm_kvweave import loading
from vllm_kvweave.load_jobs import LoadJob, StepJobs
from vllm_kvweave.loading import Loading, PagedLayer, PagedRows, WorkerPlace
from vllm_kvweave.source import Source

LAYERS, HEADS, DIM, BLOCK = 32, 8, 128, 16
MEDIA, PACES = ("http", "memory"), ("whole", "layers")
SHAPES = [LayerShape(HEADS, DIM, HEADS, DIM)] * LAYERS


def played(tokens: int) -> PlacedPrompt:
    """A prompt of drawn numbers."""
    context = Context(SHAPES, capacity=tokens + 1, dtype=torch.bfloat16, device=torch.device("cpu"))
    for layer in context.layers:
        for rows in (context.keys(layer), context.values(layer)):
            rows.normal_()
    return PlacedPrompt(tuple(range(tokens + 1)), context)


def measured(*, tokens: int, fuse_s: float, runs: int) -> dict[str, object]:
    """Each medium and pace: the middle, the least and the most milliseconds."""
    prompt, found = played(tokens), dict[str, object]()
    with TemporaryDirectory() as folder, in_process(settings_in(Path(folder), kv_bytes=8 << 30)) as inside:
        for medium in MEDIA:
            child = subprocess.Popen(
                [sys.executable, "-m", "tests.bench.handover", "--pull", inside.base_url, medium, str(tokens)],
                env={**os.environ, "KVWEAVE_API_KEY": inside.key},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for pace in PACES:
                paced = 0.0 if pace == "whole" else fuse_s
                taken = [_once(inside, child, prompt=prompt, fuse_s=paced) for _ in range(runs + 1)][1:]
                ms, cpu_s = [1000 * each[0] for each in taken], [each[1] for each in taken]
                found[f"{medium} {pace}"] = {
                    "ms": [round(each) for each in (statistics.median(ms), min(ms), max(ms))],
                    "seconds_of_cpu": round(statistics.median(cpu_s), 2),
                }
            child.communicate()
    return found


def _once(
    inside: Inside, child: "subprocess.Popen[str]", *, prompt: PlacedPrompt, fuse_s: float
) -> tuple[float, float]:
    """Seconds, and those of the CPU."""
    assert child.stdin and child.stdout
    handoff, context = Handoff(prompt), prompt.context
    begun_s = time.process_time()
    lease = inside.core.handoffs.add(handoff, HandoffReaders("default", time.monotonic()))
    ended = time.monotonic()
    child.stdin.write(f"{lease.handle} {handoff.digest}\n")
    child.stdin.flush()
    for layer in context.layers:
        time.sleep(fuse_s / LAYERS)
        ended = time.monotonic()
        inside.core.handoffs.put(lease, layer, pair=context.seen(layer, context.capacity - 1))
    loaded, cpu_s = map(float, child.stdout.readline().split())
    inside.core.handoffs.drop(lease.handle)
    return loaded - ended, cpu_s + time.process_time() - begun_s


def pull(url: str, medium: str, *, tokens: int) -> None:
    """What vLLM's worker does: a handle and a digest on each line in, the moment at which all is there out."""
    if medium != "memory":
        patch.object(loading, "mapped_prompt", lambda name, nbytes: None).start()
    blocks = -(-tokens // BLOCK)
    cache = torch.zeros(LAYERS, 2, (blocks + 1) * BLOCK, HEADS, DIM, dtype=torch.bfloat16)

    def layer(index: int) -> PagedLayer:
        def write(rows: PagedRows) -> None:
            place(cache[index, 0], rows.keys, slots=rows.slots)
            place(cache[index, 1], rows.values, slots=rows.slots)

        return PagedLayer(index, 0, HEADS, DIM, DIM, write)

    def place(out: Tensor, rows: Tensor, *, slots: Tensor) -> None:
        out.index_copy_(0, slots, rows)

    place_of = WorkerPlace(0, 1, "bfloat16", (BLOCK,), nullcontext)
    puller = Loading(
        Source(url, os.environ["KVWEAVE_API_KEY"]), [layer(each) for each in range(LAYERS)], place=place_of
    )
    for number, line in enumerate(sys.stdin):
        handle, digest = line.split()
        cache.zero_()
        begun_s = time.process_time()
        name = str(number)
        job = LoadJob(name, handle, digest, 0, tokens, (list(range(1, blocks + 1)),), 60.0)
        puller.begin(StepJobs([job]))
        ended: set[str] = set()
        while not ended:
            ended, failed = puller.ended(is_idle=True)
            assert not failed
        print(time.monotonic(), time.process_time() - begun_s, flush=True)
    puller.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--fuse", type=float, default=1.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--pull", nargs=3, metavar=("URL", "MEDIUM", "TOKENS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.pull:
        pull(given.pull[0], given.pull[1], tokens=int(given.pull[2]))
    else:
        print(json.dumps(measured(tokens=given.tokens, fuse_s=given.fuse, runs=given.runs), indent=2))


if __name__ == "__main__":
    main()
