"""Measures fuses on a GPU beside the floors of the same machine, everything included. A random model, stored records.

`python -m tests.bench.gpu` prints one JSON object. `floors`: what the card and one thread of the host do at best.
`first_token`: as in tests/bench/blend.py, from the opening of the blobs to the logits on the host, by medium, tokens of
the chunks together and tokens of one. `gpu` is the time in which any of a fuse's kernels ran, out of one fuse under
torch's profiler, with the names of those that took most. `capture` is chunks a pass at a time against the plain prefill
of as many tokens; `decode` as in tests/bench/decode.py. One round before those counted warms up.
"""

import argparse
import copy
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import PreTrainedModel

from blend.adopt.load import LoadedModel
from blend.capture.capture import capture
from blend.fuse.prompt import Prompt
from blend.fuse.record_loader import Readers
from service.app.give_back_memory import keep_freed_memory
from service.model.pinned_memory import pinned_memory
from store.blob import Blob, Terms
from store.codec.encode import encode
from store.key import CacheKey
from tests.bench.blend import first_token, parsed, plain_prefill
from tests.bench.decode import decode
from tests.bench.fetch import floors, media, named
from tests.bench.model import PREFIX, SHAPES, StoredCorpus, adopted, best_device, fused, random_model, words

DISTINCT = 8  # chunks that are captured; longer prompts have them under several names
NAMED = 12  # kernels of a profile


def stored(model: LoadedModel, *, chunk: int, count: int, codec: str) -> list[Blob]:
    """A few captured chunks, each under several names."""
    texts = [words(chunk, 10 + number) for number in range(min(DISTINCT, count))]
    records = capture(model.decoder, words(PREFIX, 3), chunks=texts)
    some = [
        encode(record, CacheKey("bench", "0", "random", codec), terms=Terms(0, precomputed=True)) for record in records
    ]
    return named(some, count)


def on_the_card(model: LoadedModel, chunks: StoredCorpus, *, tokens: int, case: str) -> dict[str, object]:
    """One fuse under the profiler."""
    with Readers() as readers:
        for _ in range(2):
            fused(model, chunks.prompt(tokens), order=parsed(case), readers=readers)
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as watched:
            start = time.perf_counter()
            fused(model, chunks.prompt(tokens), order=parsed(case), readers=readers)
            spent = time.perf_counter() - start
            torch.cuda.synchronize()
    taken: Counter[str] = Counter()
    spans: list[tuple[float, float]] = []
    calls = 0
    for event in watched.events() or ():
        if event.device_type.name == "CUDA":
            taken[event.name[:70]] += event.time_range.elapsed_us()
            spans.append((event.time_range.start, event.time_range.end))
            calls += 1
    return {
        "ms": round(1e3 * spent, 1),
        "busy_ms": round(_covered(spans) / 1e3, 1),
        "kernels": calls,
        "most_ms": {name: round(each / 1e3, 2) for name, each in taken.most_common(NAMED)},
    }


def _covered(spans: Sequence[tuple[float, float]]) -> float:
    """How long any of the spans lasted."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def card_floors() -> dict[str, float]:
    """TFLOP/s of products that a pass of the 8B shape has, and GB/s of copies."""
    found: dict[str, float] = {}
    weight = torch.randn(14336, 4096, dtype=torch.bfloat16, device="cuda")
    for rows in (64, 512, 8192):
        x = torch.randn(rows, 4096, dtype=torch.bfloat16, device="cuda")
        spent = _on_stream(lambda x=x: torch.nn.functional.linear(x, weight))
        found[f"bf16 product of {rows} rows, TFLOP/s"] = round(2 * rows * weight.numel() / spent / 1e12, 1)
    here = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    there = torch.empty_like(here)
    found["copy on the card, read and written, GB/s"] = round(
        2 * here.numel() / _on_stream(lambda: there.copy_(here)) / 1e9, 1
    )
    for name, host in {
        "pinned": torch.empty(256 << 20, dtype=torch.uint8, pin_memory=True),
        "pageable": torch.ones(256 << 20, dtype=torch.uint8),
    }.items():
        spent = _on_stream(lambda host=host: there[: host.numel()].copy_(host, non_blocking=True))
        found[f"{name} to card, GB/s"] = round(host.numel() / spent / 1e9, 1)
    return found


def _on_stream(work: Callable[[], object], runs: int = 10) -> float:
    """Seconds of one call, by events."""
    for _ in range(3):
        work()
    spent: list[float] = []
    for _ in range(runs):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        stop.record()
        stop.synchronize()
        spent.append(start.elapsed_time(stop) / 1e3)
    return statistics.median(spent)


def captures(plain: PreTrainedModel, model: LoadedModel, *, chunk: int, count: int, runs: int) -> dict[str, float]:
    """Tokens a second."""
    texts = [words(chunk, 10 + number) for number in range(count)]
    alone = Prompt((), (), tuple(token for text in texts for token in text))
    spent: dict[str, list[float]] = {"capture": [], "plain": []}
    for number in range(runs + 1):
        start = time.perf_counter()
        capture(model.decoder, words(PREFIX, 3), chunks=texts)
        took = time.perf_counter() - start
        if number:
            spent["capture"].append(took)
            spent["plain"].append(plain_prefill(plain, alone))
    return {name: round(chunk * count / statistics.median(each), 1) for name, each in spent.items()}


def host_floors(blobs: Sequence[Blob], nbytes: int) -> dict[str, float]:
    """GB of 16-bit keys and values a second, by one thread."""
    found: dict[str, float] = {}
    for name, work in floors(blobs, nbytes).items():
        work()
        start = time.perf_counter()
        work()
        found[name] = round(nbytes / (time.perf_counter() - start) / 1e9, 2)
    return found


def measure(options: argparse.Namespace) -> dict[str, object]:
    keep_freed_memory()  # as a service does
    source = random_model(SHAPES[options.shape], dtype="bfloat16", device="cuda")
    plain = copy.deepcopy(source)
    model = adopted(source)
    cases = {case: parsed(case) for case in options.cases.split(",")}
    report: dict[str, object] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "shape": options.shape,
        "floors": card_floors(),
    }
    tables: dict[str, object] = {}
    for chunk in options.chunk:
        blobs = stored(model, chunk=chunk, count=max(options.tokens) // chunk, codec=options.codec)
        few = blobs[: min(options.tokens) // chunk]
        report["host"] = host_floors(few, len(few) * chunk * model.decoder.token_bytes)
        texts = [words(chunk, 10 + number % DISTINCT) for number in range(len(blobs))]
        chunks = [(text, blob.head.key) for text, blob in zip(texts, blobs, strict=True)]
        with media(blobs, pinned_memory) as stores:
            corpora = [StoredCorpus(store, model.fingerprint.behind(words(PREFIX, 3)), chunks) for store in stores]
            for corpus in corpora:
                for tokens in options.tokens:
                    made, name = partial(corpus.prompt, tokens), f"{corpus.store.name}, {tokens} tokens in {chunk}"
                    tables[name] = first_token(plain, model, made=made, cases=cases, runs=options.runs)
            for case in cases if chunk == options.chunk[0] else ():
                tokens = options.tokens[0]
                found = on_the_card(model, corpora[-1], tokens=tokens, case=case)
                report[f"gpu, {case}, {tokens} tokens in {chunk}"] = found
    report["first_token"] = tables
    report["capture"] = captures(plain, model, chunk=options.chunk[0], count=32, runs=options.runs)
    del plain
    report["decode"] = decode(model, runs=options.runs)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="8B", help="of the model (default 8B)")
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 2048, 30720], help="of all chunks of a prompt")
    parser.add_argument("--chunk", type=int, nargs="+", default=[256, 512], help="tokens of a chunk")
    parser.add_argument("--cases", default="full,reuse,ask 5 %,hybrid 15 %", help="with commas: a policy and its ratio")
    parser.add_argument("--codec", default="q4", help="of what is stored (default q4)")
    parser.add_argument("--runs", type=int, default=5, help="rounds that count (default 5)")
    options = parser.parse_args()
    if best_device() != "cuda":
        parser.error("there is no CUDA device here")
    print(json.dumps(measure(options), indent=1))


if __name__ == "__main__":
    main()
