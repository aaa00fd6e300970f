"""Measures inline recognition: a million known chunks, prompts of 100 KB. Made prose, no catalog and no model.

`python -m tests.bench.recognize` prints one JSON object. Chunks have 300 to 2,000 bytes, a few 16 bytes or 30 KB, so
that every level occurs; 10,000 of them share their first 700. `find_ms` is of each prompt: `plain` holds no chunk,
`planted` 60 chunks among 30 that differ from a chunk by little, `shared` the same with chunks of one beginning,
`repeats` one letter, known in 10,000 lengths, and `misfits` beginnings and ends of 10,000 chunks that never fit
together: the bound on the work. `wrong` counts what is missed or found too much. Medians over `--runs` and the worst by
the clock, and the median of the thread's own CPU time; making anew the texts that are compared is part of it.
"""

import argparse
import itertools
import json
import random
import statistics
import string
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from retriever.marks import Mark, marks
from retriever.recognition.known_chunks import KnownChunks, Match
from retriever.types import MarkEntries

PROMPT_BYTES = 100_000
SHARED = 10_000  # chunks with one beginning
STEP = 10_000  # chunks that are marked at a time


def prose(seed: int, length: int) -> str:
    """Words of Zipf's frequencies in sentences and paragraphs."""
    draw = random.Random(seed)
    words = ["".join(draw.choices(string.ascii_lowercase, k=draw.randint(2, 11))) for _ in range(5000)]
    mass = list(itertools.accumulate(1 / (rank + 1) for rank in range(len(words))))
    pieces: list[str] = []
    size = 0
    while size < length:
        sentence = " ".join(draw.choices(words, cum_weights=mass, k=draw.randint(4, 24))).capitalize()
        pieces.append(sentence + draw.choice((". ", ". ", ". ", "? ", "\n\n")))
        size += len(pieces[-1])
    return "".join(pieces)[:length]


class Corpus:
    """Chunks that are made anew whenever they are asked for. The first `SHARED` rows begin alike."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool = prose(1, 4 << 20)
        self._opening = prose(2, 700)

    def text(self, row: int) -> str:
        scattered = row * 2654435761
        length = 300 + scattered // 7 % 1700
        if row % 100 == 99:
            length = (16, 40, 5_000, 30_000)[row // 100 % 4]
        start = scattered % (len(self._pool) - length)
        text = self._pool[start : start + length].strip()
        if row < SHARED:
            return f"{self._opening} {row} {text[:300]}."
        return f"{text[: length // 3]} no. {row} {text[length // 3 :]}."

    def texts(self, rows: Sequence[int]) -> Mapping[int, str]:
        return {row: self.text(row) for row in rows}

    def marks(self) -> Iterator[tuple[int, Mark]]:
        for first in range(0, self.count, STEP):
            rows = range(first, min(first + STEP, self.count))
            for row, mark in zip(rows, marks([self.text(row) for row in rows]), strict=True):
                if mark is not None:
                    yield row, mark


@dataclass(frozen=True, slots=True)
class Prompt:
    text: str
    expected: list[Match]


def entries_of(rows: Sequence[int], found: Sequence[Mark]) -> MarkEntries:
    """The rows with their marks, as a recogniser takes them."""
    heads, tails = [mark.head for mark in found], [mark.tail for mark in found]
    return MarkEntries.columns(rows=rows, heads=heads, tails=tails, nbytes=[mark.nbytes for mark in found])


def planted(corpus: Corpus, seed: int, *, rows: range, count: int = 60) -> Prompt:
    """Chunks verbatim, and others with a letter changed, without their last letter, or cut off half way."""
    draw = random.Random(seed)
    short = [row for row in draw.sample(rows, 8 * count) if len(corpus.text(row)) < 1100]
    pieces, expected = [""], list[Match]()
    size = 0
    for number, row in enumerate(short[: count + count // 2]):
        text = corpus.text(row)
        filler = f"\n§ {prose(seed + number, draw.randint(20, 200))} §\n"
        if number % 3 < 2:
            start = size + len(filler)
            expected.append(Match(start, start + len(text), row))
        else:
            text = spoilt(text, draw)
        pieces += [filler, text]
        size += len(filler) + len(text)
    return Prompt("".join([*pieces, "\n§ ", prose(seed, max(0, PROMPT_BYTES - size))]), expected)


def spoilt(text: str, draw: random.Random) -> str:
    at = draw.randrange(len(text))
    return draw.choice((text[:at] + "#" + text[at + 1 :], text[:-1], text[: len(text) // 2]))


def repeats() -> tuple[list[str], str]:
    return ["a" * (1000 + number) for number in range(10_000)], "a" * PROMPT_BYTES


def misfits() -> tuple[list[str], str]:
    """Each chunk begins with 8,192 times one letter and ends as the prompt does, but never there are so many before."""
    end = prose(3, 12_000)
    chunks = ["a" * (8192 + number % 100) + end[: 7000 + number // 100] for number in range(10_000)]
    return chunks, "a" * 60_000 + "b" + "a" * 4000 + end


def timed(
    known: KnownChunks, prompt: str, *, texts: Callable[[Sequence[int]], Mapping[int, str]], runs: int
) -> dict[str, float]:
    clock: list[float] = []
    thread: list[float] = []
    for _ in range(runs):
        began, spent = time.perf_counter(), time.thread_time()
        known.find(prompt, texts=texts, allowed=set)
        clock.append(1000 * (time.perf_counter() - began))
        thread.append(1000 * (time.thread_time() - spent))
    return summary(clock) | {"cpu": summary(thread)["median"]}


def summary(values: list[float]) -> dict[str, float]:
    return {"median": round(statistics.median(values), 2), "worst": round(max(values), 2)}


def known_corpus(corpus: Corpus) -> tuple[MarkEntries, dict[str, float]]:
    began = time.perf_counter()
    marked = list(corpus.marks())
    marked_s = time.perf_counter() - began
    entries = entries_of([row for row, _ in marked], [mark for _, mark in marked])
    return entries, {"make_and_mark_s": round(marked_s, 2)}


def memory(entries: MarkEntries) -> dict[str, float]:
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    known = KnownChunks(entries)
    after, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {name: round((size - before) / len(known), 1) for name, size in (("kept", after), ("peak", peak))}


def changes(known: KnownChunks, corpus: Corpus, runs: int) -> dict[str, object]:
    """Milliseconds of adding 100 chunks more, and of removing them, while the table is large."""
    added: list[float] = []
    removed: list[float] = []
    for run in range(runs):
        rows = range(corpus.count + 100 * run, corpus.count + 100 * (run + 1))
        entries = entries_of(rows, [mark for mark in marks([f"{row} " * 50 for row in rows]) if mark])
        began = time.perf_counter()
        known.add(entries)
        between = time.perf_counter()
        known.remove(rows)
        added.append(1000 * (between - began))
        removed.append(1000 * (time.perf_counter() - between))
    return {"add_100_ms": summary(added), "remove_100_ms": summary(removed)}


def hostile(made: tuple[list[str], str], runs: int) -> dict[str, object]:
    chunks, prompt = made
    known = KnownChunks(entries_of(range(len(chunks)), [mark for mark in marks(chunks) if mark]))
    times = timed(known, prompt, texts=lambda rows: {row: chunks[row] for row in rows}, runs=runs)
    return {"find_ms": times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=1_000_000, help="known chunks (default 1,000,000)")
    parser.add_argument("--runs", type=int, default=9, help="runs of each measurement (default 9)")
    options = parser.parse_args()
    corpus = Corpus(options.chunks)
    entries, built = known_corpus(corpus)
    seconds: list[float] = []
    for _ in range(3):
        began = time.perf_counter()
        known = KnownChunks(entries)
        seconds.append(time.perf_counter() - began)
    report: dict[str, object] = {"known": len(known), **built, "build_s": round(statistics.median(seconds), 3)}
    report["bytes_per_chunk"] = memory(entries)
    prompts = {
        "plain": Prompt(prose(4, PROMPT_BYTES), []),
        "planted": planted(corpus, 5, rows=range(SHARED, corpus.count)),
        "shared": planted(corpus, 6, rows=range(SHARED)),
    }
    for name, prompt in prompts.items():
        found = known.find(prompt.text, texts=corpus.texts, allowed=set)
        wrong = len(set(found) ^ set(prompt.expected))
        times = timed(known, prompt.text, texts=corpus.texts, runs=options.runs)
        report[name] = {"bytes": len(prompt.text), "matches": len(found), "wrong": wrong, "find_ms": times}
    report["repeats"] = hostile(repeats(), 3)
    report["misfits"] = hostile(misfits(), 3)
    report["changes"] = changes(known, corpus, options.runs)
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
