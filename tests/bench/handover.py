"""A prompt of an 8B shape on its way into another process, over HTTP or by shared memory, whole or layer by layer.

    python -m tests.bench.handover [--tokens 2048] [--fuse 1.0] [--runs 3]

Milliseconds from the last layer's end in the fuse, which is only played here, until all layers stand in a paged cache.
`whole`: all layers are there at once, as behind a fuse; `layers`: one after the other, in the time of the fuse.
`packed` goes by HTTP too, with codes of q4 for all rows but those that a fuse computes: 15 % of them. `seconds_of_cpu`
are those of both processes, for one prompt. `bytes` are of what travels.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from blend.engine.engine import PlacedPrompt
from blend.fuse.record_loader import PlacedCodes
from blend.model.context import Context, LayerShape
from blend.model.rotation import Rotation
from blend.model.row_turn import framed_rows
from service.handoffs.handoff import Handoff, LayerPart
from service.handoffs.handoffs import HandoffReaders
from store.blob import StoredShape
from store.codec.frame import LayerForm, frame_layout, framed_layer, framed_part, turned_layer, write_layers
from store.codec.spec import Spec
from store.record import LayerKV, narrow
from tests.service.played_decoder import PlayedDecoder
from tests.service.serving import Inside, in_process, settings_in
from vllm_kvweave import loading, pulled_parts
from vllm_kvweave.load_jobs import LoadJob, StepJobs
from vllm_kvweave.loading import Loading
from vllm_kvweave.paged_cache import PagedLayer, PagedRows, WorkerPlace
from vllm_kvweave.source import Source

LAYERS, HEADS, DIM, BLOCK = 32, 8, 128, 16
CHUNK, RECOMPUTED = 512, 0.15
MEDIA, PACES = ("http", "packed", "memory"), ("whole", "layers")
SHAPES = [LayerShape(HEADS, DIM, HEADS, DIM)] * LAYERS


def played(tokens: int) -> tuple[PlacedPrompt, list[PlacedCodes]]:
    """A prompt of chunks out of one record, of which some rows were computed anew."""
    context = Context(SHAPES, capacity=tokens + 1, dtype=torch.bfloat16, device=torch.device("cpu"))
    decoder, random = (
        PlayedDecoder(SHAPES, Rotation("halves", 0, DIM // 2), tokens=tokens + 1),
        np.random.default_rng(26),
    )
    shape, bits = StoredShape(HEADS, DIM, HEADS, DIM), Spec.parse("q4").bits(0)
    both = (narrow(random.standard_normal((HEADS, CHUNK, DIM), np.float32), "bfloat16") for _ in range(2))
    form = LayerForm(bits, shape, "bfloat16")
    raw = np.frombuffer(b"".join(write_layers([LayerKV(*both)], form)), np.uint8)
    stored = turned_layer(framed_layer([framed_part(raw, frame_layout(form, CHUNK), start=0)], shape))
    codes: list[PlacedCodes] = []
    for layer in context.layers:
        for start in range(0, tokens, CHUNK):
            stop = min(start + CHUNK, tokens)
            decoder.place_packed(context, [layer], stored=framed_rows([(start, stop, stored)]))
            codes.append(PlacedCodes(layer, start, stop, stored))
        anew = torch.from_numpy(random.choice(tokens, int(RECOMPUTED * tokens), replace=False))
        context.keys(layer)[:, anew] = context.values(layer)[:, anew] = 0.5
    return PlacedPrompt(tuple(range(tokens + 1)), context, decoder), codes


def measured(*, tokens: int, fuse_s: float, runs: int) -> dict[str, object]:
    """Each medium and pace: the middle, the least and the most milliseconds."""
    prompt, codes = played(tokens)
    found: dict[str, object] = {"bytes": _travelling(prompt, codes)}
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
                taken = [_once(inside, child, prompt=prompt, codes=codes, fuse_s=paced) for _ in range(runs + 1)][1:]
                ms, cpu_s = [1000 * each[0] for each in taken], [each[1] for each in taken]
                found[f"{medium} {pace}"] = {
                    "ms": [round(each) for each in (statistics.median(ms), min(ms), max(ms))],
                    "seconds_of_cpu": round(statistics.median(cpu_s), 2),
                }
            child.communicate()
    return found


def _travelling(prompt: PlacedPrompt, codes: Sequence[PlacedCodes]) -> dict[str, int]:
    handoff, wanted = Handoff(prompt), LayerPart(0, len(prompt.ids) - 1)
    handoff.put(0, prompt.context.seen(0, wanted.stop))
    for each in codes:
        handoff.place(each)
    packed = handoff.packed_part(0, wanted)
    assert packed is not None
    angles = len(handoff.angles(0, start=0, stop=wanted.stop))
    found = {"http": LAYERS * len(handoff.part(0, wanted)), "packed": LAYERS * len(packed) + angles}
    handoff.let_go()
    return {**found, **{f"{name} a token": each // wanted.stop for name, each in found.items()}}


def _once(
    inside: Inside, child: "subprocess.Popen[str]", *, prompt: PlacedPrompt, codes: Sequence[PlacedCodes], fuse_s: float
) -> tuple[float, float]:
    """Seconds, and those of the CPU."""
    assert child.stdin and child.stdout
    handoff, context = Handoff(prompt), prompt.context
    for each in codes:
        handoff.place(each)
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
    if medium == "http":
        patch.object(pulled_parts, "VERSION", sys.maxsize).start()
    blocks = -(-tokens // BLOCK)
    cache = torch.zeros(LAYERS, 2, (blocks + 1) * BLOCK, HEADS, DIM, dtype=torch.bfloat16)

    def layer(index: int) -> PagedLayer:
        def write(rows: PagedRows) -> None:
            place(cache[index, 0], rows.keys, slots=rows.slots)
            place(cache[index, 1], rows.values, slots=rows.slots)

        return PagedLayer(index, 0, HEADS, DIM, DIM, write)

    def place(out: Tensor, rows: Tensor, *, slots: Tensor) -> None:
        out.index_copy_(0, slots, rows)

    place_of = WorkerPlace(0, 1, "bfloat16", (BLOCK,), torch.device("cpu"), nullcontext)
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
