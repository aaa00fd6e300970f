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
from tests.bench.real.tables import ratio_of

ORDERS = (BlendOrder("ask", 0.15), BlendOrder("reuse", 0.0))


def table(found: list[dict[str, Judged]]) -> str:
    """Means over the prompts; divergences beside those of the first row, with their intervals."""
    lines = [
        "| second turn | KL | of the first row's (95 %) | recomputed | computing, of full's |",
        "|---|---|---|---|---|",
    ]
    base = np.array([each[next(iter(each))].kl for each in found])
    for name in found[0]:
        some = [each[name] for each in found]
        kls = np.array([each.kl for each in some])
        work, recomputed = fmean(each.work for each in some), fmean(each.recomputed for each in some)
        lines.append(f"| {name} | {kls.mean():.4f} | {ratio_of(kls, base).text(2)} | {recomputed:.0f} | {work:.2f} |")
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
