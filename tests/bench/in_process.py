"""A service in this process, for what is timed without HTTP: its texts, its corpus, a first token. Measures nothing."""

import gc
import random
from collections.abc import Callable, Generator, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path

from blend.engine.sampling import Sampling
from blend.fuse.fuse import BlendOrder
from service.access.principal import DEFAULT_TENANT, OPEN
from service.answers.answer_request import AnswerRequest, Turn
from service.answers.events import Finished
from service.app import composition
from service.app.core import Core
from service.app.workspace import open_workspace
from service.documents.corpus_listing import files
from service.documents.precompute import Precompute
from service.lab.demo.demo_answers import running
from service.reports import Report
from service.settings import Settings
from store.blob_store import BlobStore

READ = BlendOrder("full", 0.0)
WORDS = ["the", "river", "tower", "keeper", "stone", "of", "a", "garden", "and", "bridge", "north", "lamp", "old"]


@contextmanager
def serving(settings: Settings, store: Callable[[BlobStore], BlobStore]) -> Generator[Core]:
    """A running service over what `store` makes of the settings' store."""
    whole = composition.compose_store
    composition.compose_store = lambda each: store(whole(each))
    try:
        with running(settings) as core:
            gc.collect()
            gc.freeze()  # as `kvweave serve` does
            yield core
    finally:
        composition.compose_store = whole


def made_up(core: Core, tokens: int, *, number: int) -> str:
    """A text of about so many tokens that no other begins like."""
    rng, words = random.Random(f"{tokens}/{number}"), list[str]()
    counted = core.model.prompt_builder.tokenizer.encode_text
    while len(counted(" ".join(words))) < tokens:
        words += rng.choices(WORDS, k=max(1, (tokens - len(counted(" ".join(words)))) // 2))
    return " ".join(words)


def precompute(settings: Settings, folder: Path, *, texts: Sequence[str]) -> None:
    """Stores the records of texts, each a chunk of a document of its own."""
    for at, text in enumerate(texts):
        (folder / f"{at}.txt").write_text(text, "utf-8")
    with open_workspace(settings, DEFAULT_TENANT, chunk_tokens=4096) as target:
        Precompute(target).run(files([str(folder / "*.txt")]), on_progress=lambda _: None)


async def first_token(core: Core, chunk_ids: Sequence[str], order: BlendOrder | None) -> tuple[float, Report]:
    """The milliseconds to the first token, and the answer's report."""
    ask = AnswerRequest(
        OPEN,
        (Turn("user", "Which of them is the oldest?"),),
        chunk_ids=tuple(chunk_ids),
        order=order,
        sampling=Sampling(max_tokens=1, ignore_eos=True),
        asks=True,
    )
    async with aclosing(core.pipeline.answer(ask)) as events:
        async for event in events:
            if isinstance(event, Finished):
                return event.report.timings_ms["first_token"], event.report
    raise AssertionError("no end")
