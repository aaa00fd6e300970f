"""Measures the blending: time to the first token, how a fuse grows, decoding, and stalls. A random model, no store.

`python -m tests.bench.blend` prints one JSON object. The model has Qwen2.5-0.5B's shape, or Llama-3-8B's; chunks have
256 tokens, their records lie in memory (with `--stored q4` in LMDB, in that codec), and none stands behind the prefix
it was captured behind. `first_token` is timed from the layout, with `--stored` from the opening of the blobs, to the
logits; each round times `plain` (transformers' own prefill) and every case once, and the ratios compare times of one
round. `ratio_to_plain` is how many times faster than plain a case is: median, smallest, largest. `scaling` recomputes
the same number of tokens in prompts of growing length; `beyond_reuse` is what that costs on top of computing only
prefix and question. `--only fetch` brings records of q4 into a context without a model's work, in gigabytes of 16-bit
keys and values a second, beside what memcpy, the digests and zstd alone take in the same rounds. `decode` and `stall`
are explained in tests/bench/decode.py. One round before those counted warms up.
"""

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from tempfile import TemporaryDirectory

import numpy as np
import torch
from transformers import PreTrainedModel

from blend.adopt.load import LoadedModel
from blend.fuse.fuse import BlendOrder, FuseReport
from blend.fuse.prompt import Prompt
from blend.fuse.record_loader import Readers
from store.url import open_store
from tests.bench.decode import decode, stall
from tests.bench.fetch import fetch
from tests.bench.model import (
    CHUNK,
    QUESTION,
    SHAPES,
    Corpus,
    adopted,
    best_device,
    captured,
    fused,
    random_model,
    stored,
)

CASES = "full,prefix,reuse,heads 15 %,deviation 5 %,deviation 15 %,ask 3 %,ask 5 %,hybrid 5 %,hybrid 15 %"
GROWING = ("reuse", "heads", "deviation", "ask")
LENGTHS = (1024, 2048, 4096, 8192, 16384)
RECOMPUTED = 154
SHARED = "ask 5 %"  # the one case whose recomputed tokens grow with the prompt

Rounds = Mapping[str, Sequence[float]]


def parsed(case: str) -> BlendOrder:
    """A policy, with a rule behind it or without, and its ratio: `reuse`, `ask/layers=8/check=2/times=2 5 %`."""
    policy, _, ratio = case.partition(" ")
    return BlendOrder(policy, float(ratio.removesuffix("%")) / 100 if ratio else 0.0)


def plain_prefill(model: PreTrainedModel, prompt: Prompt) -> float:
    """Seconds of transformers' own."""
    start = time.perf_counter()
    with torch.inference_mode():
        out = model(torch.tensor([prompt.ids], device=model.device), use_cache=True, logits_to_keep=1)
        out.logits[0, 0, 0].item()  # on an accelerator nothing is done before it is read
    return time.perf_counter() - start


def first_token(
    plain: PreTrainedModel,
    model: LoadedModel,
    *,
    made: Callable[[], Prompt],
    cases: Mapping[str, BlendOrder],
    runs: int,
) -> dict[str, object]:
    """All cases in turn, round by round. A prompt is made anew for each: a stored one opens its blobs."""
    seconds: dict[str, list[float]] = {"plain": [], **{name: [] for name in cases}}
    reports: dict[str, list[FuseReport]] = {name: [] for name in cases}
    with Readers() as readers:
        for number in range(runs + 1):
            spent = {"plain": plain_prefill(plain, made())}
            for name, order in cases.items():
                start = time.perf_counter()
                result, _ = fused(model, made(), order=order, readers=readers)
                spent[name] = time.perf_counter() - start
                if number:
                    reports[name].append(result.report)
                del result  # its context
            for name, each in spent.items():
                if number:
                    seconds[name].append(each)
    rows = {name: _case(name, seconds, reports=each) for name, each in reports.items()}
    return {"prompt_tokens": len(made().ids), "plain": {"seconds": _median(seconds["plain"])}, **rows}


def _case(name: str, seconds: Rounds, *, reports: Sequence[FuseReport]) -> dict[str, object]:
    return {
        "seconds": _median(seconds[name]),
        "ratio_to_plain": _ratio(seconds["plain"], seconds[name]),
        **({"ratio_to_full": _ratio(seconds["full"], seconds[name])} if "full" in seconds else {}),
        "recomputed": reports[0].recomputed,
        "fresh": reports[0].fresh,
        "stages": {stage: _median([each.seconds[stage] for each in reports]) for stage in reports[0].seconds},
    }


def _median(values: Sequence[float]) -> float:
    return round(statistics.median(values), 4)


def _ratio(slower: Sequence[float], faster: Sequence[float]) -> list[float]:
    """The median, the smallest and the largest."""
    ratios = [a / b for a, b in zip(slower, faster, strict=True)]
    return [round(each, 2) for each in (statistics.median(ratios), min(ratios), max(ratios))]


def scaling(model: LoadedModel, corpus: Corpus, *, lengths: Sequence[int], runs: int) -> dict[str, object]:
    """The same number of recomputed tokens, more and more cached ones; and `ask` with the same share of them."""
    seconds: dict[str, dict[int, list[float]]] = {
        name: {tokens: [] for tokens in lengths} for name in (*GROWING, SHARED)
    }
    recomputed: set[int] = set()
    with Readers() as readers:
        for number in range(runs + 1):
            for tokens in lengths:
                for name in seconds:
                    order = parsed(name) if name == SHARED else BlendOrder(name, (RECOMPUTED - 0.5) / tokens)
                    result, spent = fused(model, corpus.prompt(tokens), order=order, readers=readers)
                    if name == "heads":
                        recomputed.add(result.report.recomputed)
                    if number:
                        seconds[name][tokens].append(spent)
    assert recomputed == {RECOMPUTED}, f"recomputed {recomputed} tokens"
    medians = {name: {n: statistics.median(each) for n, each in rows.items()} for name, rows in seconds.items()}
    floor = medians["reuse"]
    return {"recomputed": RECOMPUTED, **{name: _growth(rows, floor) for name, rows in medians.items()}}


def _growth(rows: Mapping[int, float], floor: Mapping[int, float]) -> dict[str, object]:
    """With the straight line through all lengths, and the largest distance from it as a share of the longest time."""
    lengths, spent = np.array(list(rows), float), np.array(list(rows.values()))
    slope, start = np.polyfit(lengths, spent, 1) if len(rows) > 1 else (0.0, spent[0])
    off = np.abs(slope * lengths + start - spent).max() / spent.max()
    return {
        "seconds": {str(tokens): round(each, 4) for tokens, each in rows.items()},
        "beyond_reuse": {str(tokens): round(each - floor[tokens], 4) for tokens, each in rows.items()},
        "line": {"start_s": round(float(start), 4), "s_per_1k": round(float(slope) * 1024, 4), "off": round(off, 4)},
    }


def measure(options: argparse.Namespace) -> dict[str, object]:
    if options.only == "fetch":
        found = fetch(tokens=options.tokens, chunk=options.chunk, runs=options.runs, device=options.device)
        return {"gb_s_of_16_bit": found, "threads": torch.get_num_threads()}
    shape = replace(SHAPES[options.shape], layers=options.layers or SHAPES[options.shape].layers)
    source = random_model(shape, dtype=options.dtype, device=options.device)
    plain = copy.deepcopy(source) if options.only in (None, "first") else None
    model = adopted(source)
    corpus = captured(model)
    report: dict[str, object] = {
        "model": f"{options.shape}, random",
        "layers": shape.layers,
        "dtype": options.dtype,
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
    }
    if plain is not None:
        cases = {case: parsed(case) for case in options.cases.split(",")}
        with TemporaryDirectory() as folder, open_store(f"lmdb://{folder}") as store:
            made = partial(corpus.prompt, options.tokens, question=options.question)
            if options.stored:
                made = partial(stored(model, store, options).prompt, options.tokens)
            report["first_token"] = first_token(plain, model, made=made, cases=cases, runs=options.runs)
        del plain
    if options.only in (None, "scaling"):
        lengths = [tokens for tokens in LENGTHS if tokens <= options.longest]
        report["scaling"] = scaling(model, corpus, lengths=lengths, runs=options.runs)
    if options.only in (None, "decode"):
        report["decode"] = decode(model, runs=options.runs)
    if options.only in (None, "stall"):
        report["stall"] = stall(model, corpus, tokens=min(4096, options.longest))
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default=best_device(), help="default: cuda if there is one"
    )
    parser.add_argument("--tokens", type=int, default=2048, help=f"of all chunks, a multiple of {CHUNK} (default 2048)")
    parser.add_argument(
        "--question", type=int, default=QUESTION, help="tokens behind the chunks (default 32); no --stored"
    )
    parser.add_argument("--chunk", type=int, default=CHUNK, help="tokens of a chunk that fetch takes")
    parser.add_argument("--stored", metavar="CODEC", help="records of the first token come out of LMDB, in this codec")
    parser.add_argument("--titles", type=int, default=0, help="tokens of a title behind each stored chunk (default 0)")
    parser.add_argument("--apart", action="store_true", help="titles are not stored with their chunks")
    parser.add_argument("--cases", default=CASES, help="of the first token, with commas: a policy and its ratio")
    parser.add_argument("--runs", type=int, default=5, help="rounds that count (default 5)")
    parser.add_argument("--shape", choices=SHAPES, default="0.5B", help="of the model (default 0.5B)")
    parser.add_argument("--layers", type=int, default=0, help="fewer than the shape's make a quick try")
    parser.add_argument("--longest", type=int, default=8192, help="prompt of scaling and stall (default 8192)")
    parser.add_argument("--only", choices=("first", "fetch", "scaling", "decode", "stall"), help="one part")
    print(json.dumps(measure(parser.parse_args()), indent=1))


if __name__ == "__main__":
    main()
