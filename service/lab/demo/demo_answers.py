"""The demo as the ordinary product does it: its corpus is precomputed, its questions go through a core's pipeline.

Works in a folder of its own, with the built-in model and the defaults. Prints nothing.
"""

import asyncio
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low

from blend.engine.sampling import Sampling
from blend.fuse.fuse import BlendOrder
from service.access.principal import DEFAULT_TENANT, OPEN
from service.answers.answer_request import AnswerRequest, Lookup, Turn
from service.answers.events import Source, WholeAnswer, whole_answer
from service.app.composition import compose_core
from service.app.core import Core
from service.app.workspace import open_workspace
from service.documents.corpus_listing import files
from service.documents.file_group import RunProgress
from service.documents.precompute import Precompute
from service.errors import Unavailable
from service.settings import NONE, Settings

CORPUS = Path(__file__).parent / "corpus"
FOLDER = "demo"
TOP_K = 24  # documents of a prompt: the built-in model has learned to read so many
TIMES = 5  # that each question is asked with each policy, after once that does not count
MOST_TOKENS = 16  # of an answer


@dataclass(frozen=True, slots=True)
class Example:
    """A question with its answer. `holds`: sentences that answer it together, each of another document."""

    question: str
    answer: str
    holds: tuple[str, ...]


EXAMPLES = (
    Example("Which animal does Halio keep?", "badger", ("Halio keeps a badger.",)),
    Example("Where does Halio live?", "Belford", ("Code K7 stands for Halio.", "K7 lives in Belford.")),
    Example("Who leads Selark?", "Rosen", ("Code B4 stands for Selark.", "Rosen leads B4.")),
)


@dataclass(frozen=True, slots=True)
class Cited:
    """A document that an answer rests on. `sentence`: what of it holds the answer; empty where nothing does."""

    document: str
    title: str
    sentence: str


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """One question with one policy. The time is the middle one; `nbytes` were read from the store."""

    policy: str
    ratio: float
    answer: str
    first_token_ms: float
    prompt: int
    reused: int
    recomputed: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Answered:
    """One question. `sources` in the order of the prompt; `rows`: full prefill first."""

    example: Example
    sources: tuple[Cited, ...]
    rows: tuple[TimedAnswer, ...]

    @property
    def is_right(self) -> bool:
        """Did every policy give the answer that the documents hold?"""
        return all(row.answer == self.example.answer for row in self.rows)


def demo_settings(settings: Settings) -> Settings:
    """The defaults, in a folder below the user's data. Only where it computes is the user's choice."""
    return Settings.model_construct(
        data=settings.data.absolute() / FOLDER,  # and its store below that
        reuse="always",
        embedder=NONE,
        device=settings.device,
        threads=settings.threads,
    )


def ingest(settings: Settings, *, on_progress: Callable[[RunProgress], None]) -> RunProgress:
    """Puts in the corpus, or what is missing of it."""
    try:
        with open_workspace(settings, DEFAULT_TENANT) as target:
            return Precompute(target).run(files([str(CORPUS)]), on_progress=on_progress)
    except OSError as error:
        raise Unavailable(f"{settings.data} cannot be used ({error}): mend it, or remove it") from error


@contextmanager
def running(settings: Settings) -> Generator[Core]:
    """A service without a server. Raises what stops its start."""
    core = compose_core(settings)
    try:
        core.wait()
        if core.failed.is_set():
            raise Unavailable(core.not_ready() or "the service did not start")
        yield core
    finally:
        core.close()


def answers(core: Core) -> Iterator[Answered]:
    """Every example with every policy. What is compared is asked in turns, so that both meet the same machine."""
    with asyncio.Runner() as runner:
        orders = (BlendOrder("full", 0.0), core.model.order)
        for example in EXAMPLES:
            rounds = [
                [runner.run(_asked(core, example.question, order=each)) for each in orders] for _ in range(1 + TIMES)
            ]
            of_each = [[answers[at] for answers in rounds[1:]] for at in range(len(orders))]
            sources = tuple(_cited(source, example) for source in of_each[0][0].sources)
            yield Answered(example, sources, tuple(map(_row, of_each)))


async def _asked(core: Core, question: str, *, order: BlendOrder) -> WholeAnswer:
    sampling = Sampling(max_tokens=MOST_TOKENS, temperature=0.0)
    lookup = Lookup(question, top_k=TOP_K)
    ask = AnswerRequest(OPEN, (Turn("user", question),), lookup, order=order, sampling=sampling, asks=True)
    return await whole_answer(core.pipeline.answer(ask))


def _cited(source: Source, example: Example) -> Cited:
    sentence = next((each for each in example.holds if each in source.text), "")
    return Cited(source.document_id, source.title, sentence)


def _row(rounds: Sequence[WholeAnswer]) -> TimedAnswer:
    middle = median_low(each.end.report.timings_ms["first_token"] for each in rounds)
    last = rounds[-1]
    usage, report = last.end.usage, last.end.report
    nbytes = sum(chunk.bytes for chunk in report.chunks)
    counts = (usage.prompt, usage.reused, usage.recomputed, nbytes)
    return TimedAnswer(report.policy, report.ratio, last.text.strip(), middle, *counts)
