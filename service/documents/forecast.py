"""What a run over a corpus would do and cost (--dry-run), by a sample of its chunks. Stores and indexes nothing."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from retriever.readers.reading import ReadingProblem
from service.documents.chunk_capture import CaptureItem, batches
from service.documents.corpus_listing import CorpusFile
from service.documents.drafts import read_in
from service.documents.file_group import FIRST_FILES, CorpusReader, RunProgress, Target, look, signature
from service.model.served_model import ServedModel
from store.blob import Blob, Terms
from store.codec.encode import encode
from store.key import CacheKey
from store.record import Record

SAMPLED = 16  # chunks that are computed and packed, from all over the corpus
SAMPLED_TOKENS = 64  # of the one chunk that tells what a MB costs
TB = 1e12
MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Forecast:
    """`tokens` and `nbytes` are those of chunks that are not stored yet; `seconds` is for computing and packing them.

    `pays_from`: bytes a second that read a chunk as soon as it can be computed; a slower store would not pay.
    """

    files: int
    unchanged: int
    documents: int
    chunks: int
    present: int
    unsupported: int
    tokens: int
    nbytes: float
    seconds: float
    bytes_per_token: float
    tokens_per_s: float
    month_cost: float
    pays_from: float
    problems: tuple[ReadingProblem, ...]


@dataclass(frozen=True, slots=True)
class UnitCost:
    """What a MB of text takes, by the first one that is to be read: of its tokens, the first `SAMPLED_TOKENS`."""

    tokens: float
    nbytes: float


def unit_cost(target: Target, found: Iterable[CorpusFile | ReadingProblem]) -> UnitCost | None:
    """Computes one chunk. None where nothing is new, or the new has no text."""
    model = target.tenant.model
    with target.tenant.catalog.view() as view:
        known = view.sources(target.collection)
    for file in islice((each for each in found if isinstance(each, CorpusFile)), FIRST_FILES):
        if (source := known.get(file.name)) and source.signature == signature(file, target.rules):
            continue
        texts = (draft.text or draft.parts[0].text for draft in read_in(file).drafts)
        text = next((each for each in texts if not each.isspace()), "")[: MB // 10]
        chunk = model.titled(text[: 4 * SAMPLED_TOKENS], "", prefix=())
        if chunk is not None:
            captured = model.captured([chunk])
            if captured.exception() is not None:  # the run says of each chunk why it has no record
                return None
            tokens = model.counted([text])[0] / len(text.encode()) * MB
            return UnitCost(tokens, tokens * _packed(captured.result()[0], model).nbytes / len(chunk.all))
    return None


def forecast(target: Target, found: Iterable[CorpusFile | ReadingProblem], *, price_per_tb: float) -> Forecast:
    """Reads and cuts all that is missing or changed, and computes a sample."""
    progress, missing, documents = RunProgress(), list[CaptureItem](), 0
    state = look(target)
    for group in CorpusReader(target, state).groups(found):
        progress.add(group.progress)
        documents += sum(len(fresh.documents) for fresh in group.fresh)
        missing += group.items.values()
    rate, size = _sampled(target.tenant.model, missing)
    tokens = sum(len(item.chunk.all) for item in missing)
    return Forecast(
        files=progress.files,
        unchanged=progress.unchanged,
        documents=documents,
        chunks=progress.chunks,
        present=progress.present,
        unsupported=progress.unsupported,
        tokens=tokens,
        nbytes=tokens * size,
        seconds=tokens / rate if rate else 0.0,
        bytes_per_token=size,
        tokens_per_s=rate,
        month_cost=tokens * size / TB * price_per_tb,
        pays_from=size * rate,
        problems=tuple(progress.problems),
    )


def _sampled(model: ServedModel, missing: Sequence[CaptureItem]) -> tuple[float, float]:
    """Tokens a second, computed and packed, and bytes a token. The first pass warms up and does not count."""
    sample = missing[:: max(1, len(missing) // SAMPLED)][:SAMPLED]
    if not sample:
        return 0.0, 0.0
    model.captured([sample[0].chunk]).result()
    start = time.perf_counter()
    captured = (model.captured([item.chunk for item in batch]) for batch in batches(sample))
    records = [record for each in captured for record in each.result()]
    blobs = [_packed(record, model) for record in records]
    seconds, tokens = time.perf_counter() - start, sum(len(item.chunk.all) for item in sample)
    return tokens / seconds, sum(blob.nbytes for blob in blobs) / tokens


def _packed(record: Record, model: ServedModel) -> Blob:
    key = CacheKey("forecast", "sample", "sample", model.codec)
    return encode(record, key, terms=Terms(0, precomputed=False))
