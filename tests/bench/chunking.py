"""Measures how the chunker cuts: how many ids an edit changes, how full chunks are. The texts are those of the tests.

`python -m tests.bench.chunking --trials 700` prints one JSON object. For every style of text so many random edits of a
document of about 12 chunks: a block inserted, deleted, replaced, or changed in a word. `changed` counts edits by how
many ids are new or gone, whichever is more. `fill` is the mean share of the budget, `tiny` the share of chunks below
a fifth of it.
"""

import argparse
import json
import random
from collections import Counter
from statistics import fmean

from retriever.chunking.count import count_words
from retriever.chunking.cut import CutRules, cut
from tests.retriever.test_cut import STYLES, TOKENS, blocks_of, changed, edit, half_budgets

FIRST = 10_000  # seeds that no test uses


def edits(trials: int) -> dict[str, dict[str, int]]:
    """By the size of what was put in or taken out, in budgets."""
    found = {"below half a budget": Counter[int](), "half to one budget": Counter[int]()}
    for style in STYLES:
        for seed in range(FIRST, FIRST + trials):
            done = edit(style, seed, parts=12)
            if (halves := half_budgets(done)) < 2:
                found[[*found][halves]][max(0, *changed(done))] += 1
    return {
        size: {"edits": each.total(), "more than 3": sum(n for ids, n in each.items() if ids > 3), "most": max(each)}
        for size, each in found.items()
    }


def fill(budget: int) -> dict[str, float]:
    """Of prose, headings and mixed text."""
    counts: list[int] = []
    for style in ("prose", "headings", "mixed"):
        text = "".join(blocks_of(style, random.Random(style), 100 * budget // TOKENS))
        counts += count_words([part.text for part in cut(text, CutRules(budget), count=count_words)])
    return {"fill": round(fmean(counts) / budget, 3), "tiny": sum(each < budget / 5 for each in counts) / len(counts)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100, help="edits of each style (default 100)")
    trials = parser.parse_args().trials
    print(
        json.dumps(
            {"changed": edits(trials), "by budget": {each: fill(each) for each in (64, 128, 256, 512)}}, indent=1
        )
    )


if __name__ == "__main__":
    main()
