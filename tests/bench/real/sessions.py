"""Measures what a session costs in quality on a real model: `python -m tests.bench.real.sessions` ends in a table.

Two turns over the same passages: a question about all of them, the model's answer, and then a question whose answer is
known. The second turn is computed by each order anew, as without a session, and by each behind the first turn's
context, which the first of the orders left: what was computed anew for the first question stays, and so does what was
said, over the rows of then.
"""

import argparse
from contextlib import closing
from statistics import fmean

import numpy as np

from blend.fuse.fuse import BlendOrder
from tests.bench.real.material import Shape
from tests.bench.real.results import Judged
from tests.bench.real.sizes import opened

ORDERS = (BlendOrder("ask", 0.15), BlendOrder("reuse", 0.0))


def table(found: list[dict[str, Judged]]) -> str:
    """Means over the prompts; divergences beside those of the first row, with what 2,000 draws of prompts differ by."""
    lines = [
        "| second turn | KL | of the first row's (95 %) | recomputed | computing, of full's |",
        "|---|---|---|---|---|",
    ]
    first, random = next(iter(found[0])), np.random.default_rng(57)
    drawn = random.integers(len(found), size=(2000, len(found)))
    base = np.array([each[first].kl for each in found])
    for name in found[0]:
        some, kls = [each[name] for each in found], np.array([each[name].kl for each in found])
        low, high = np.percentile(kls[drawn].mean(1) / base[drawn].mean(1), [2.5, 97.5])
        times = f"{kls.mean() / base.mean():.2f} ({low:.2f} to {high:.2f})"
        work, recomputed = fmean(each.work for each in some), fmean(each.recomputed for each in some)
        lines.append(f"| {name} | {kls.mean():.4f} | {times} | {recomputed:.0f} | {work:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=60)
    parser.add_argument("--codec", default="q4")
    given, probe, material = opened(parser, seed=5731)
    with closing(probe):
        cases = (material.draw("continuation", Shape(), number) for number in range(given.prompts))
        print(table([probe.turns(case, ORDERS, codec=given.codec) for case in cases]))


if __name__ == "__main__":
    main()
