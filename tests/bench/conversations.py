"""Measures turns and documents that come again: `python -m tests.bench.conversations` ends in tables and a picture.

The shapes are LMCache's benchmarks. `turns`: `--conversations` take `--turns` in turn behind one system prompt, each
prompt is all that was said before and a question; `waiting` is the same with memory for one and a half of them.
`documents`: questions about `--documents` of `--chunks` chunks of 256 tokens, each document asked about in every one of
`--rounds`, in an order by chance; beginnings of prompts have memory for `--held` of the documents. `cut`: a
conversation whose turns each bring a document of two chunks and that must fit `WINDOW` tokens: turns are cut from the
front, which moves all that follows; prompts of which none was cut do not count. `grown`: the first `--turns` of it
without a window, so that each prompt begins with the one before.

The ways: `full` computes all; `prefix` goes on from the longest beginning that a prompt before it had; `disk` as well,
where those that memory has no room for wait there; `ours` has records of documents' chunks in q4 in LMDB, wherever they
stand, computes `--ratio` of them anew, and goes on as `prefix` does up to the first chunk; `session` as well goes on
from what its last prompt left. An engine in this process, a model of `--shape` with random weights. `first s` is a
middle, `reused` a share of the tokens.
"""

import argparse
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from blend.adopt.load import LoadedModel
from blend.engine.engine import EngineLimits
from blend.engine.local_engine import LocalEngine
from blend.fuse.fuse import BlendOrder
from blend.fuse.prompt import ChunkSegment, Prompt, TextSegment
from service.app.composition import compose_model
from service.settings import load_settings
from tests.bench.engine_requests import FULL, PREFIX, Asked, Ids, StoredChunks, ask, drawn, plain
from tests.bench.models import random_model
from tests.bench.picture import FOLDER, Line, Panel, draw

SEED = 5
CHUNK, SYSTEM, SAID, ANSWER = 256, 128, 60, 16  # tokens
LONG_SYSTEM = 1000  # of `turns`, which have no documents
WINDOW, BROUGHT = 2400, 2  # tokens, and chunks of a turn's document
WAYS, WAITING = ("full", "prefix", "ours"), ("full", "prefix", "disk")
GROWN, OURS = (*WAYS, "session"), ("ours", "session")


@dataclass(slots=True)
class Scene:
    """What a way took for the prompts of one shape."""

    asked: list[Asked] = field(default_factory=list[Asked])
    seconds: float = 0.0

    @property
    def row(self) -> str:
        first = statistics.median(each.first_s for each in self.asked)
        tokens, computed = (sum(getattr(each, name) for each in self.asked) for name in ("tokens", "computed"))
        done = len(self.asked) / self.seconds
        return f"{first:.3f} | {1 - computed / tokens:.2f} | {computed:,} of {tokens:,} | {done:.2f}"


@dataclass(frozen=True, slots=True)
class Said:
    """A part of a conversation: a chunk by its number, or text."""

    ids: Ids
    chunk: int | None = None


@dataclass(frozen=True, slots=True)
class Bench:
    """A model, its chunks, and the orders of the ways."""

    model: LoadedModel
    folder: Path
    options: argparse.Namespace

    @property
    def words(self) -> int:
        return self.model.decoder.vocabulary

    def order(self, way: str) -> BlendOrder:
        return BlendOrder("ask", self.options.ratio) if way in OURS else FULL if way == "full" else PREFIX

    def engine(self, tokens: int, way: str) -> LocalEngine:
        """An engine with memory for beginnings of so many tokens."""
        model, spill = self.model, self.folder if way == "disk" else None
        limits = EngineLimits(prefix_bytes=tokens * model.decoder.token_bytes, spill=spill, waiting=1000)
        return LocalEngine(model.decoder, model.tokenizer, fingerprint=model.fingerprint, limits=limits)


def each_way(
    bench: Bench,
    held: int,
    scene: Callable[[Bench, str, LocalEngine], Iterator[Asked]],
    *,
    ways: Sequence[str] = WAYS,
) -> dict[str, Scene]:
    """The ways, each with an engine of its own, after one prompt that warms."""
    found: dict[str, Scene] = {}
    for way in ways:
        with closing(bench.engine(held, way)) as engine:
            ask(engine, plain(drawn(SYSTEM, random.Random(0), vocabulary=bench.words)), order=FULL).wait()
            prompts = scene(bench, way, engine)
            first = next(prompts)  # records are captured before it
            own = found.setdefault(way, Scene([first]))
            began = first.asked_s
            own.asked += prompts
            own.seconds = time.perf_counter() - began
    return found


def turns(bench: Bench, way: str, engine: LocalEngine) -> Iterator[Asked]:
    """All conversations take their turns one after the other, so that each is as long ago as there are others."""
    chance = random.Random(SEED)
    system = drawn(LONG_SYSTEM, chance, vocabulary=bench.words)
    said = [[*system] for _ in range(bench.options.conversations)]
    for each in said * bench.options.turns:
        each.extend(drawn(SAID, chance, vocabulary=bench.words))
        asked = ask(engine, plain(each), order=bench.order(way), most=ANSWER)
        asked.wait()
        each.extend(asked.answer)
        yield asked


def documents(bench: Bench, way: str, engine: LocalEngine) -> Iterator[Asked]:
    """Each document is asked about once in each round."""
    chance, size = random.Random(SEED), bench.options.chunks
    prefix = tuple(drawn(SYSTEM, chance, vocabulary=bench.words))
    texts = [tuple(drawn(CHUNK, chance, vocabulary=bench.words)) for _ in range(size * bench.options.documents)]
    with closing(StoredChunks(bench.model, engine, bench.folder / f"documents-{way}", prefix=prefix)) as chunks:
        chunks.add(texts) if way == "ours" else chunks.ids.extend(texts)
        for _ in range(bench.options.rounds):
            for document in chance.sample(range(bench.options.documents), bench.options.documents):
                numbers = range(document * size, (document + 1) * size)
                question = drawn(SAID, chance, vocabulary=bench.words)
                made = chunks.prompt if way == "ours" else chunks.text
                asked = ask(engine, made(numbers, question), order=bench.order(way), most=ANSWER)
                asked.wait()
                yield asked


def cut(bench: Bench, way: str, engine: LocalEngine) -> Iterator[Asked]:
    """One conversation; turns leave at its front as long as it is longer than the window."""
    for turn, (asked, before) in enumerate(_brought(bench, way, engine, turns=bench.options.cut_turns, window=WINDOW)):
        if before < turn:
            yield asked


def grown(bench: Bench, way: str, engine: LocalEngine) -> Iterator[Asked]:
    """One conversation, whole in each prompt."""
    yield from (asked for asked, _ in _brought(bench, way, engine, turns=bench.options.turns, window=math.inf))


def _brought(bench: Bench, way: str, engine: LocalEngine, *, turns: int, window: float) -> Iterator[tuple[Asked, int]]:
    """Turns that each bring a document, and how many before them are left in the prompt."""
    chance, size, has_records = random.Random(SEED), BROUGHT, way in OURS
    prefix = tuple(drawn(SYSTEM, chance, vocabulary=bench.words))
    texts = [tuple(drawn(CHUNK, chance, vocabulary=bench.words)) for _ in range(size * turns)]
    history = list[list[Said]]()
    with closing(StoredChunks(bench.model, engine, bench.folder / f"{window}-{way}", prefix=prefix)) as chunks:
        chunks.add(texts) if has_records else chunks.ids.extend(texts)
        for turn in range(turns):
            brought = [Said(chunks.ids[number], number) for number in range(turn * size, (turn + 1) * size)]
            question = tuple(drawn(SAID, chance, vocabulary=bench.words))
            while SYSTEM + sum(_tokens(each) for each in (*history, brought)) + SAID > window:
                del history[0]
            before = [part for each in (*history, brought) for part in each]
            made = _with_records(chunks, before, question) if has_records else _as_text(chunks, before, question)
            session = "s" if way == "session" else ""
            asked = ask(engine, made, order=bench.order(way), most=ANSWER, session=session)
            asked.wait()
            yield asked, len(history)
            history.append([*brought, Said((*question, *asked.answer))])


def _tokens(turn: Sequence[Said]) -> int:
    return sum(len(each.ids) for each in turn)


def _as_text(chunks: StoredChunks, said: Sequence[Said], question: Ids) -> Prompt:
    return plain([*chunks.prefix, *(token for each in said for token in each.ids), *question])


def _with_records(chunks: StoredChunks, said: Sequence[Said], question: Ids) -> Prompt:
    segments: list[ChunkSegment | TextSegment] = [
        TextSegment(each.ids) if each.chunk is None else chunks.segment(each.chunk) for each in said
    ]
    return Prompt(chunks.prefix, tuple(segments), question)


def shown(name: str, found: dict[str, Scene]) -> list[str]:
    lines = [f"| {name} | first s | reused | tokens computed | prompts a second |", "|---" * 5 + "|"]
    return [*lines, *(f"| {way} | {each.row} |" for way, each in found.items()), ""]


def picture(found: dict[str, dict[str, Scene]], path: Path) -> None:
    panels = [
        Panel(
            f"prompt of `{name}`",
            "first token, s",
            [Line(way, [*enumerate((one.first_s for one in each.asked), 1)]) for way, each in ways.items()],
        )
        for name, ways in found.items()
    ]
    draw(panels, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="24x256")
    parser.add_argument("--conversations", type=int, default=3)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--documents", type=int, default=6)
    parser.add_argument("--chunks", type=int, default=6, help="of a document")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--held", type=float, default=0.5, help="of the documents, that memory has room for")
    parser.add_argument("--cut-turns", type=int, default=12)
    parser.add_argument("--ratio", type=float, default=0.15)
    parser.add_argument("--picture", type=Path, default=FOLDER / "conversations.svg")
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        name = random_model(options.shape, Path(folder) / "model")
        model = compose_model(load_settings(model=name, dtype="float32", device="cpu"))
        bench = Bench(model, Path(folder), options)
        longest = LONG_SYSTEM + options.turns * (SAID + ANSWER)
        held = round(options.held * options.documents * (options.chunks * CHUNK + SYSTEM + SAID + ANSWER))
        found = {
            "turns": each_way(bench, 1 << 15, turns),
            "waiting": each_way(bench, round(1.5 * longest), turns, ways=WAITING),
            "documents": each_way(bench, held, documents),
            "cut": each_way(bench, 1 << 15, cut),
            "grown": each_way(bench, 1 << 15, grown, ways=GROWN),
        }
    print("\n".join(line for name, each in found.items() for line in shown(name, each)))
    picture(found, options.picture)


if __name__ == "__main__":
    main()
