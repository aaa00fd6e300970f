"""Measures size against divergence on a real model's records: `python -m tests.bench.real.sizes` ends in a table and a
picture.

Prompts of three kinds of text, chunks captured in context, plain reuse: how far each codec's answers are from those of
lossless records, and how many bits it takes for each number. `bins` are CacheGen's, as LMCache has them: each token's
numbers of a layer divided by the largest among them, 32 steps for keys of the first ten of 32 layers and values of the
first two, 16 for all others (`/2`, `x2`: half and twice as many). Their arithmetic coder is not run: its size is the
entropy of each layer's and channel's own steps, a bound that none beats, with the largest numbers at 16 bits. `+tables`
adds the distributions that they store with each chunk, 16 bits a step. Theirs are rotated keys, ours are not.
"""

import argparse
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from blend.adopt.load import load
from store.codec.spec import LOSSLESS
from store.record import LayerKV, Record
from tests.bench.picture import FOLDER, Line, Panel, draw
from tests.bench.real.articles import PAGES, TEXTS, TokenCounts, divided, read
from tests.bench.real.material import Material, Shape
from tests.bench.real.prompt_probe import Packed, Packing, PromptProbe

KINDS = {
    "pages": ("continuation", Shape(corpus=PAGES)),
    "texts": ("continuation", Shape(corpus=TEXTS)),
    "copies": ("copies", Shape()),
}
OURS = ("q8", "q6", "q5", "q4", "k4v2.3", "q3", "q2.3", "q2")
FIRST_KEYS, FIRST_VALUES = 10 / 32, 2 / 32  # of the layers, that have more steps
STEPS, FIRST_STEPS, ABSMAX_BITS, TABLE_BITS = 16, 32, 16, 16
TABLES = " +tables"
FETCHED = Path("build/real")
THEIRS = {"bins /2": 0.5, "bins": 1.0, "bins x2": 2.0, "bins x4": 4.0}

Floats = NDArray[np.float32]


def binned(record: Record, *, times: float, with_tables: bool) -> tuple[Record, str, float]:
    """What these bins leave of a record, and the bits that they take."""
    layers, bits = list[LayerKV | None](), 0.0
    for index, layer in enumerate(record.layers):
        if layer is None:
            layers.append(None)
            continue
        at = index / len(record.layers)
        wide = (FIRST_STEPS if at < first else STEPS for first in (FIRST_KEYS, FIRST_VALUES))
        parts = [
            _part(np.asarray(part, np.float32), steps=round(times * steps), with_tables=with_tables)
            for part, steps in zip((layer.keys, layer.values), wide, strict=True)
        ]
        bits += sum(each for _, each in parts)
        layers.append(LayerKV(*(part for part, _ in parts)))
    return replace(record, layers=tuple(layers)), LOSSLESS, bits


def _part(numbers: Floats, *, steps: int, with_tables: bool) -> tuple[Floats, float]:
    """Keys or values (H, T, D) of a layer as the bins have them, and their bits."""
    highest = steps // 2 - 1
    scale = np.abs(numbers).max((0, 2), keepdims=True).clip(np.finfo(np.float32).tiny)
    codes = np.rint(numbers / scale * highest)
    tokens = numbers.shape[1]
    bits = float(ABSMAX_BITS * tokens)
    for channel in codes.transpose(0, 2, 1).reshape(-1, tokens).astype(np.int64) + highest:
        share = np.bincount(channel, minlength=steps) / tokens
        bits -= tokens * float((share[share > 0] * np.log2(share[share > 0])).sum())
        bits += TABLE_BITS * steps if with_tables else 0
    return (codes * scale / highest).astype(np.float32), bits


def packings() -> dict[str, Packing]:
    """Every way of packing by its name."""

    def ours(codec: str) -> Packing:
        return lambda record: (record, codec, 0.0)

    found: dict[str, Packing] = {codec: ours(codec) for codec in OURS}
    for name, times in THEIRS.items():
        for tables, suffix in ((False, ""), (True, TABLES)):
            found[name + suffix] = partial(binned, times=times, with_tables=tables)
    return found


def measure(probe: PromptProbe, material: Material, *, chunk: int, prompts: int) -> dict[str, dict[str, Packed]]:
    """Kind -> way -> its bits and its divergence, means over the prompts."""
    found: dict[str, dict[str, Packed]] = {}
    for kind, (suite, shape) in KINDS.items():
        cases = (material.draw(suite, replace(shape, chunk=chunk), number) for number in range(prompts))
        every = [probe.lossy(probe.asked(case), packings()) for case in cases]
        found[kind] = {
            name: Packed(*map(fmean, zip(*(each[name] for each in every), strict=True))) for name in every[0]
        }
    return found


def table(found: Mapping[str, Mapping[str, Packed]]) -> str:
    """Every way of packing, by the mean of its bits."""
    lines = [f"| | bits a number | {' | '.join(f'{kind}, KL' for kind in found)} |", f"|---|---|{'---|' * len(found)}"]
    bits = {name: fmean(each[name].bits for each in found.values()) for name in packings()}
    for name, size in sorted(bits.items(), key=lambda each: -each[1]):
        lines.append(f"| {name} | {size:.2f} | {' | '.join(f'{each[name].kl:.4f}' for each in found.values())} |")
    return "\n".join(lines)


def panels(found: Mapping[str, Mapping[str, Packed]]) -> list[Panel]:
    """A picture of each kind."""
    groups = {"kvweave": OURS, "CacheGen's bins": THEIRS, "with their tables": [each + TABLES for each in THEIRS]}
    return [
        Panel(
            f"bits a number ({kind})",
            "KL from lossless records, nats",
            [Line(name, [(each[one].bits, each[one].kl) for one in some]) for name, some in groups.items()],
            log="y",
        )
        for kind, each in found.items()
    ]


def opened(parser: argparse.ArgumentParser, *, seed: int) -> tuple[argparse.Namespace, PromptProbe, Material]:
    """The options, with those of the model and the prose, and both of these."""
    parser.add_argument("--model", type=Path, default=FETCHED / "model", help="a checkpoint's folder")
    parser.add_argument("--prose", type=Path, default=FETCHED / "prose", help="a folder of texts")
    parser.add_argument("--seed", type=int, default=seed)
    given = parser.parse_args()
    probe = PromptProbe(load(str(given.model), dtype="float32"))
    return given, probe, Material(divided(read(given.prose), seed=given.seed), TokenCounts(probe.count), given.seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=8, help="of each kind (default 8)")
    parser.add_argument("--chunk", type=int, default=256, help="tokens of a chunk, about (default 256)")
    parser.add_argument("--picture", type=Path, default=FOLDER / "sizes.svg")
    given, probe, material = opened(parser, seed=5703)
    with closing(probe):
        found = measure(probe, material, chunk=given.chunk, prompts=given.prompts)
    print(table(found))
    draw(panels(found), given.picture)


if __name__ == "__main__":
    main()
