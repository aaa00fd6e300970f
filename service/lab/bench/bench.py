"""A whole measurement of speeds and sizes: what of the plan fits window and memory, and its figures. Prints nothing."""

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median

import torch

from blend.adopt.load import device_named
from blend.fuse.policy import with_rule
from retriever.readers.reading import ReadingProblem
from service.app.composition import compose_served, compose_store
from service.app.operating_point import FULL, LOSSLESS, OperatingPoint
from service.documents.chunk_capture import CaptureItem, batches, tailed
from service.documents.corpus_listing import CorpusListing, arguments
from service.errors import Invalid
from service.lab.bench.first_token import FirstTokenTimer, TimingRow, ids_of, lay
from service.lab.bench.packing import Packed, Sample, arrays, packed
from service.lab.bench.scratch_store import ScratchStore, TierSpeed, scratch_store
from service.lab.bench.texts import Texts, chunks_of, made_up, of_files
from service.lab.bench.worth import Worth, worth
from service.lab.eval.grid import grid
from service.model.prompt_builder import PromptPassage
from service.model.served_model import ServedModel
from service.settings import Settings
from store.record import Record

SAMPLED = 4  # records that the codecs are tried on


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """What is to be measured. `chunks`: of each prompt. `store`: a URL, or none for a store that is gone afterwards."""

    chunks: tuple[int, ...]
    chunk_tokens: int
    repeats: int
    policies: tuple[str, ...] = ()
    codecs: tuple[str, ...] = ()
    corpus: str = ""
    store: str = ""

    def __post_init__(self) -> None:
        """Raises SuiteError and Invalid for a senseless plan, before a model is loaded."""
        grid([FULL.policy, *self.policies], [1.0], codecs=[LOSSLESS, *self.codecs])
        if not self.chunks or min(self.chunks) < 1:
            given = ",".join(map(str, self.chunks)) or "none"
            raise Invalid(f"--chunks: name how many chunks the prompts have, such as 2,5,10, got {given}")

    @property
    def steps(self) -> int:
        """The most progress steps that a measurement reports."""
        return 4 + len(set(self.chunks)) * (self.repeats + 1) * (2 + len(self.policies))


@dataclass(frozen=True, slots=True)
class BenchFacts:
    """The model and its speeds. Bytes are plain keys and values. `store_tokens_per_s`: computed, packed and stored."""

    model: str
    dtype: str
    device: str
    threads: int
    window: int
    layers: int
    own_layers: int
    bytes_per_token: float
    chunk_tokens: float
    capture_tokens_per_s: float
    store_tokens_per_s: float


@dataclass(frozen=True, slots=True)
class BenchMeasurement:
    """A whole measurement. The first of `codecs` is in use. `skipped`: what was passed over in the corpus's folders.
    `notes`: what was asked for and could not be."""

    facts: BenchFacts
    codecs: tuple[Packed, ...]
    rows: tuple[TimingRow, ...]
    tiers: tuple[TierSpeed, ...]
    worth: Worth
    problems: tuple[ReadingProblem, ...]
    skipped: tuple[str, ...]
    notes: tuple[str, ...]


def measure(settings: Settings, plan: BenchPlan, *, on_progress: Callable[[str], None]) -> BenchMeasurement:
    """Measures as planned. `on_progress` hears of each step once the model is loaded. The store keeps nothing of it."""
    with ExitStack() as stack:
        url = plan.store or f"lmdb://{stack.enter_context(tempfile.TemporaryDirectory())}/store"
        part = stack.enter_context(scratch_store(lambda: compose_store(settings.model_copy(update={"store": url}))))
        model = compose_served(settings)
        stack.callback(model.engine.close)
        return _Run(settings, plan, model=model, part=part, on_progress=on_progress).measure()


class _Run:
    def __init__(
        self,
        settings: Settings,
        plan: BenchPlan,
        *,
        model: ServedModel,
        part: ScratchStore,
        on_progress: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._plan = plan
        self._model = model
        self._part = part
        self._on_progress = on_progress
        self._device = device_named(settings.device)
        order = model.order
        others = (with_rule(policy, default=order.policy) for policy in plan.policies)
        named = dict.fromkeys((FULL.policy, order.policy, *others))
        self._points = [FULL if each == FULL.policy else OperatingPoint(each, order.ratio, LOSSLESS) for each in named]
        if len(self._points) == 1:
            raise Invalid("the settings' policy is full, which reuses nothing: name another with --policies hybrid")
        self._notes: list[str] = []
        self._skipped: list[Path] = []

    def measure(self) -> BenchMeasurement:
        model, plan = self._model, self._plan
        texts = self._texts()
        self._check_room(texts.chunks)
        first = model.captured(ids_of(model, texts.chunks[:1])).result()[0]
        lengths = self._lengths(texts.chunks, token_bytes=first.nbytes // first.tokens)
        chunks = texts.chunks[: lengths[-1]]
        timer = FirstTokenTimer(model, self._part, chunks=chunks)
        items = timer.items
        facts, records = self._captured(items)
        self._on_progress("codecs")
        codecs = packed(
            [Sample(record, item.key) for record, item in zip(records[:SAMPLED], items, strict=False)],
            list(dict.fromkeys((model.codec, *plan.codecs))),
            repeats=plan.repeats,
            device=self._device,
        )
        rows = self._asked(timer, chunks, lengths=lengths, tokens_per_s=facts.capture_tokens_per_s)
        self._on_progress("reading from the store")
        tiers = self._part.speeds(items, repeats=plan.repeats)
        found = worth(rows, self._points[1].policy, bytes_per_token=codecs[0].bytes_per_token, tiers=tiers)
        return BenchMeasurement(
            *(facts, tuple(codecs), tuple(rows), tuple(tiers), found),
            *(texts.problems, tuple(map(str, self._skipped)), tuple(self._notes)),
        )

    def _texts(self) -> Texts:
        plan, most = self._plan, max(self._plan.chunks)
        listing = CorpusListing(arguments([plan.corpus] if plan.corpus else []), {})
        self._skipped = listing.skipped
        drafts = of_files(listing) if plan.corpus else islice(made_up(plan.chunk_tokens), most)
        return chunks_of(drafts, self._model, most=most, tokens=plan.chunk_tokens)

    def _check_room(self, chunks: Sequence[PromptPassage]) -> None:
        model, wanted = self._model, self._plan.chunk_tokens
        around = lay(model, chunks[:1]).tokens - len(ids_of(model, chunks[:1])[0].ids)
        if around + wanted > model.window:
            raise Invalid(
                f"--chunk-tokens {wanted}: the window of {model.window:,} tokens holds no prompt with such a chunk: "
                f"ask for at most {model.window - around:,}"
            )

    def _lengths(self, chunks: Sequence[PromptPassage], *, token_bytes: int) -> list[int]:
        """The numbers of chunks that were asked for, as far as there is room; ascending."""
        window, kv_bytes = self._model.window, self._settings.kv_bytes
        by_memory = kv_bytes // token_bytes - 1  # for the answer
        fitting = len(chunks)
        while fitting and lay(self._model, chunks[:fitting]).tokens > min(window, by_memory):
            fitting -= 1
        limit = f"the window of {window:,} tokens holds" if window <= by_memory else "KVWEAVE_KV_BYTES has room for"
        if not fitting:
            raise Invalid(f"{limit} no chunk of {self._plan.chunk_tokens} tokens: ask for smaller ones")
        limit = limit if fitting < len(chunks) else "the corpus has"
        wanted = sorted(set(self._plan.chunks))
        self._notes += [f"Instead of {each} chunks {fitting}: {limit} no more." for each in wanted if each > fitting]
        return sorted({min(each, fitting) for each in wanted})

    def _captured(self, items: Sequence[CaptureItem]) -> tuple[BenchFacts, list[Record]]:
        """The model's facts and records. Timed twice: a batch computed alone, and all of them into the store."""
        model, settings = self._model, self._settings
        self._on_progress("computing chunks")
        batch = [item.chunk for item in next(batches(items))]
        seconds: list[float] = []
        records: list[Record] = []
        for _ in range(self._plan.repeats):
            start = time.perf_counter()
            plain = model.captured(batch).result()
            seconds.append(time.perf_counter() - start)
            records = list(map(tailed, plain, batch))
        self._on_progress("computing and storing chunks")
        store_s = self._part.write(model, items)
        tokens = sum(len(item.chunk.all) for item in items)
        own = [layer for layer in records[0].layers if layer]
        facts = BenchFacts(
            model=settings.model,
            dtype=records[0].dtype,
            device=str(self._device),
            threads=torch.get_num_threads(),
            window=model.window,
            layers=len(records[0].layers),
            own_layers=len(own),
            bytes_per_token=sum(each.nbytes for each in arrays(records[0])) / records[0].tokens,
            chunk_tokens=tokens / len(items),
            capture_tokens_per_s=sum(len(chunk.all) for chunk in batch) / median(seconds),
            store_tokens_per_s=tokens / store_s,
        )
        return facts, records

    def _asked(
        self, timer: FirstTokenTimer, chunks: Sequence[PromptPassage], *, lengths: Sequence[int], tokens_per_s: float
    ) -> list[TimingRow]:
        rows: list[TimingRow] = []
        times = len(self._points) * (self._plan.repeats + 1)
        seconds = [times * lay(self._model, chunks[:length]).tokens / tokens_per_s for length in lengths]
        with closing(timer):
            for number, length in enumerate(lengths):
                stage = f"prompts of {length} chunks, all done in some {sum(seconds[number:]):,.0f} s"
                rows += timer.rows(
                    length,
                    self._points,
                    repeats=self._plan.repeats,
                    on_progress=lambda _, stage=stage: self._on_progress(stage),
                )
        return rows
