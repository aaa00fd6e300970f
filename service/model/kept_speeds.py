"""Measures the cost of prompts on this machine: a second or two at the start, kept beside the operating point."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from blend.engine.engine import EngineRequest
from blend.errors import PromptError
from blend.fuse.fuse import BlendOrder
from blend.fuse.policy import SELECTIVE, policy_name
from blend.fuse.prompt import ChunkSegment, Prompt, TextSegment
from service.model.served_model import Ids, ServedModel, made_up_ids
from service.model.speeds import HIDDEN, ModelSpeeds, PromptSizes
from service.model.timed import ONE, timed
from store.blob import Terms
from store.codec.decode import read_rows
from store.codec.encode import encode
from store.key import CacheKey
from store.reader import BlobReader, read
from store.record_source import BlobSource

SHORTEST, LONGEST = 64, 4096  # tokens of the prompts that are measured
ENOUGH_S = 0.5  # a prompt that takes as long is the last, the second at the earliest: longer ones follow from them
BLENDED_S = 0.15  # a prompt that takes as long is the longest that is blended, several times and several ways
ROUNDS, ROUNDS_S = 4, 0.2  # of each, as long as they take no longer; the shortest counts: what disturbs only adds
BLENDED = 1024  # tokens of the prompts that are blended at most: their costs grow with the tokens alone
CHUNK, PARTS = 256, 8  # tokens of a long chunk at most, and so many short ones have as many together
ASKED = 12  # tokens behind the chunks


@dataclass(frozen=True, slots=True)
class _Chunk:
    ids: Ids
    reader: BlobReader


@dataclass(frozen=True, slots=True)
class _Timing:
    sizes: PromptSizes
    seconds: float


def kept_speeds(model: ServedModel, file: Path, *, conditions: str) -> ModelSpeeds | None:
    """The speeds that the file has of these conditions; else they are measured, and kept there.

    None where window or memory are too short to tell.
    """
    try:
        kept = json.loads(file.read_text("utf-8"))
        if kept.pop("conditions") == conditions:
            return ModelSpeeds(**{name: float(value) for name, value in kept.items()})
    except (OSError, ValueError, TypeError, KeyError, AttributeError):  # none is kept, or it is of another release
        pass
    try:
        found = measured(model)
    except PromptError:  # the contexts hold a plain prompt and not quite a blended one
        found = None
    if found is not None:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps({"conditions": conditions, **asdict(found)}, indent=2), "utf-8")
        except OSError:  # a full disk: measured again next time
            pass
    return found


def conditions(model: ServedModel, device: torch.device) -> str:
    """All that the speeds of a model on a device depend on, as far as a process can tell."""
    fingerprint, order = model.fingerprint, model.order
    is_cuda = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if is_cuda else f"{device} {torch.backends.cpu.get_cpu_capability()}"
    point = f"{order.policy} {order.ratio:g} {model.codec} to={ENOUGH_S:g}"
    return f"{fingerprint.digest} {point} {name} threads={torch.get_num_threads()} torch={torch.__version__}"


def measured(model: ServedModel) -> ModelSpeeds | None:
    """The speeds of the model at its operating point, with nothing else going on; None where there is no room to."""
    if model.window < 2 * SHORTEST:
        return None
    ids = made_up_ids(min(LONGEST, model.window // 2), vocabulary=model.vocabulary)
    plain = _plain(model, ids)
    if not plain:
        return None
    longest = next((each.sizes.tokens for each in plain[1:] if each.seconds > BLENDED_S), plain[-1].sizes.tokens)
    longest = min(BLENDED, longest)
    tokens = min(CHUNK, longest // 2)
    long, short = _chunks(model, (ids[:tokens], ids[: max(1, tokens // PARTS)]))
    half = longest // 2 // tokens
    few, many = [long] * half, [short] * (half * tokens // len(short.ids))
    cases = [(few * 2, 0), (few, 0), (many, 0), (few, longest // 2)]
    prompts = [partial(_prompt, model, chunks, text=ids[: rows + ASKED]) for chunks, rows in cases]
    blends = _fastest(model, prompts, order=model.order)
    speeds = _solved(model, plain, blends=blends, reader=long.reader)
    if speeds.recomputed >= HIDDEN or policy_name(model.order.policy) not in SELECTIVE:
        return speeds
    [more] = _fastest(model, prompts[:1], order=replace(model.order, ratio=HIDDEN))
    each_s = (more.seconds - blends[0].seconds) / (HIDDEN - speeds.recomputed) / more.sizes.cached
    return replace(speeds, again_s=max(0.0, each_s - speeds.pair_s * more.sizes.tokens))


def _plain(model: ServedModel, ids: Ids) -> list[_Timing]:
    found: list[_Timing] = []
    tokens = SHORTEST
    while tokens <= len(ids) and not (len(found) > 1 and found[-1].seconds > ENOUGH_S):
        text = Prompt((), (), ids[:tokens])
        try:
            found += _fastest(model, [lambda text=text: text], order=BlendOrder("full", 0.0))
        except PromptError:  # beyond the memory of all contexts
            break
        tokens *= 2
    return found


def _chunks(model: ServedModel, every: Sequence[Ids]) -> list[_Chunk]:
    """Records of these tokens, packed as all are."""
    records = model.engine.capture((), every).result()
    blobs = [
        encode(record, CacheKey("speed", "chunk", "model", model.codec), terms=Terms(0, precomputed=False))
        for record in records
    ]
    return [_Chunk(ids, read(blob)) for ids, blob in zip(every, blobs, strict=True)]


def _prompt(model: ServedModel, chunks: Sequence[_Chunk], *, text: Ids) -> Prompt:
    """A prompt of chunks that all stand elsewhere than where they were captured."""
    behind = model.fingerprint.behind(())
    segments = [ChunkSegment(each.ids, BlobSource(each.reader, behind)) for each in chunks]
    return Prompt((), (TextSegment(text[:1]), *segments), text[1:])


def _fastest(model: ServedModel, prompts: Sequence[Callable[[], Prompt]], *, order: BlendOrder) -> list[_Timing]:
    """The shortest time of each prompt, asked in turns: what disturbs one of them disturbs the others."""
    rounds, spent = list[list[_Timing]](), 0.0
    while len(rounds) < ROUNDS and spent < ROUNDS_S * len(prompts):
        rounds.append([_timing(model, prompt(), order=order) for prompt in prompts])
        spent += sum(each.seconds for each in rounds[-1])
    return [min(each, key=lambda timing: timing.seconds) for each in zip(*rounds, strict=True)]


def _timing(model: ServedModel, asked: Prompt, *, order: BlendOrder) -> _Timing:
    records = [each for each in asked.segments if isinstance(each, ChunkSegment)]
    sizes = PromptSizes(len(asked.ids), sum(len(each.ids) for each in records), len(records))
    return _Timing(sizes, timed(model.engine, EngineRequest(asked, ONE, order), since=time.perf_counter()).seconds)


def _solved(
    model: ServedModel, plain: Sequence[_Timing], *, blends: Sequence[_Timing], reader: BlobReader
) -> ModelSpeeds:
    prefill_s, row_s, pair_s = _curve([(each.sizes.tokens, each.seconds) for each in plain])
    whole, half, short, read_again = blends
    share = model.order.ratio if policy_name(model.order.policy) in SELECTIVE else 0.0

    def rest(timing: _Timing) -> float:
        """A time less that of the pairs (row and token) of recomputed tokens."""
        return timing.seconds - pair_s * share * timing.sizes.cached * timing.sizes.tokens

    chunk_s = max(0.0, (rest(short) - rest(half)) / (short.sizes.chunks - half.sizes.chunks))
    more = rest(whole) - rest(half) - chunk_s * (whole.sizes.chunks - half.sizes.chunks)
    cached_s = max(0.0, more / (whole.sizes.cached - half.sizes.cached))
    rows = read_again.sizes.tokens - half.sizes.tokens
    fresh = max(1.0, (rest(read_again) - rest(half)) / (rows * (row_s + pair_s * read_again.sizes.tokens)))
    records = chunk_s * half.sizes.chunks + cached_s * half.sizes.cached
    asked = fresh * (half.sizes.tokens - half.sizes.cached) * (row_s + pair_s * half.sizes.tokens)
    return ModelSpeeds(
        *(prefill_s, row_s, pair_s),
        fuse_s=max(0.0, rest(half) - records - asked),
        chunk_s=chunk_s,
        cached_s=cached_s,
        fresh=fresh,
        recomputed=share,
        byte_s=_byte_s(reader),
        again_s=0.0,
    )


def _curve(points: Sequence[tuple[int, float]]) -> tuple[float, float, float]:
    """A time that grows with the tokens and with their square, none of it negative, near the points in proportion."""
    rows = np.array([[1.0, tokens, tokens**2] for tokens, _ in points]) / np.array([[each] for _, each in points])
    found: list[tuple[float, list[float]]] = []
    for powers in ([1], [2], [0, 1], [0, 2], [1, 2], [0, 1, 2]):
        if len(powers) > len(points):
            continue
        parts = np.zeros(3)
        parts[powers] = np.linalg.lstsq(rows[:, powers], np.ones(len(points)))[0]
        if (parts >= 0).all():
            found.append((float(np.square(rows @ parts - 1).sum()), parts.tolist()))
    prefill_s, row_s, pair_s = min(found)[1]
    return prefill_s, row_s, pair_s


def _byte_s(reader: BlobReader) -> float:
    start = time.perf_counter()
    for group in reader.groups:
        read_rows([reader], group)
    return (time.perf_counter() - start) / reader.head.body_bytes
