"""Where prefill, scattered rows, decoding or reuse leave the tolerance around a model's own logits. Refuses nothing."""

from collections.abc import Sequence

import torch
from torch import Tensor

from blend.adopt.refusals import TOKENS
from blend.capture.capture import capture
from blend.fuse.fuse import BlendOrder, FusedPrompt, fuse
from blend.fuse.prompt import ChunkSegment, Prompt, lay_out
from blend.fuse.record_loader import Readers
from blend.run.context import Context, Segment, scattered, span
from blend.run.decoder import Decoder
from blend.run.rows_cache import LayerRange
from blend.run.states import ContextStates
from store.fingerprint import Fingerprint
from store.record_source import HeldRecord

CHUNK = slice(12, 36)  # behind a prefix, before a question
AGAIN = (2, 3, 17, 30, 31, 47)  # rows computed a second time, each in its own slot
AGREES = {torch.float32: 1e-3}  # of the largest logit; half precision is compared as a whole
AGREES_HALF = 0.2  # experts chosen otherwise by a last bit are a tenth: for what is sound in float32, and quantizers


def disagreement(decoder: Decoder, plain: Tensor, *, ids: Sequence[int]) -> str | None:
    """Where our passes over 48 tokens differ from the model's own logits (T, V), computed densely; None if nowhere."""
    found = (_with_states if decoder.model_layers.states else _by_rows)(decoder, plain, ids=ids)
    return next((name for name, agrees in found.items() if not agrees), None)


def _by_rows(decoder: Decoder, plain: Tensor, *, ids: Sequence[int]) -> dict[str, bool]:
    context = decoder.context(TOKENS + 1)
    tokens = torch.tensor(ids, device=decoder.device)
    whole = decoder.advance([Segment(context, span(0, TOKENS, device=decoder.device), 0)], tokens)
    again = scattered(AGAIN, device=decoder.device)
    rows = decoder.advance([Segment(context, again, 0)], tokens[again.index])
    pairs = (TOKENS - 4, TOKENS - 3), (TOKENS - 2, TOKENS - 1)  # records of either must fit both
    steps = torch.stack([each for pair in pairs for each in decoder.decode([(context, at, ids[at]) for at in pair])])
    assert whole is not None and rows is not None
    return {
        "a prefill": _agree(whole, plain),
        "scattered rows": _agree(rows, plain[again.index]),
        "decoding": _agree(steps, plain[-4:]),
        "a chunk behind its prefix": _agree(_reused(decoder, ids).logits[None], plain[-1:]),
    }


def _with_states(decoder: Decoder, plain: Tensor, *, ids: Sequence[int]) -> dict[str, bool]:
    """Two requests side by side. Rows that come twice begin behind a mark: no state is known in between."""
    contexts = [decoder.context(TOKENS + 1) for _ in range(2)]
    tokens = torch.tensor(ids, device=decoder.device)
    for each in contexts:
        each.states.mark = CHUNK.start

    def rows(start: int, stop: int) -> Tensor:
        slots = span(start, stop, device=decoder.device)
        segments = [Segment(each, slots, row * (stop - start)) for row, each in enumerate(contexts)]
        logits = decoder.advance(segments, tokens[start:stop].repeat(len(contexts)))
        assert logits is not None
        return logits.view(len(contexts), stop - start, -1)

    prefill = torch.cat([rows(0, CHUNK.start), rows(CHUNK.start, TOKENS - 4)], dim=1)
    steps = torch.stack(
        [torch.stack(decoder.decode([(each, at, ids[at]) for each in contexts])) for at in range(TOKENS - 4, TOKENS)], 1
    )
    again = rows(CHUNK.start, TOKENS)
    replayed = _replayed(decoder, tokens, context=contexts[0])
    reused, both = _reused(decoder, ids).context, plain.expand(len(contexts), -1, -1)
    chunks = [
        torch.cat([part.flatten() for layer in decoder.model_layers.keeping for part in each.part(layer, CHUNK)])[None]
        for each in (reused, contexts[0])
    ]
    return {
        "a prefill in two parts": _agree(prefill, both[:, :-4]),
        "decoding": _agree(steps, both[:, -4:]),
        "rows behind a state": _agree(again, both[:, CHUNK.start :]),
        "a chunk whose layers with states run alone": replayed is None or _agree(replayed, plain[-1]),
        "a chunk behind its prefix": _agree(chunks[0], chunks[1]),
    }


def _replayed(decoder: Decoder, tokens: Tensor, *, context: Context) -> Tensor | None:
    """The last logits behind a chunk that is replayed; None where no layers are."""
    if not decoder.model_layers.stretches:
        return None
    chunk = span(CHUNK.start, CHUNK.stop, device=decoder.device)
    decoder.prefill(context, chunk, ids=tokens[CHUNK], layer_range=LayerRange(noted=decoder.model_layers.inputs))
    context.states = context.states.behind(CHUNK.start) or ContextStates()
    rows, is_chunk = span(CHUNK.start, TOKENS, device=decoder.device), torch.arange(CHUNK.start, TOKENS) < CHUNK.stop
    return decoder.replay(context, rows, ids=tokens[CHUNK.start :], replayed=is_chunk)


def _agree(ours: Tensor, theirs: Tensor) -> bool:
    a, b = ours.float(), theirs.float()
    if not bool(torch.isfinite(a).all()):
        return False
    limit = AGREES.get(ours.dtype)
    if limit is not None:
        return bool((a - b).abs().max() <= limit * b.abs().max())
    return bool((a - b).square().sum() <= AGREES_HALF**2 * b.square().sum())


def _reused(decoder: Decoder, ids: Sequence[int]) -> FusedPrompt:
    prefix, chunk, question = tuple(ids[: CHUNK.start]), tuple(ids[CHUNK]), tuple(ids[CHUNK.stop :])
    print_ = Fingerprint("", "", "", "", "", "", "")
    [record] = capture(decoder, prefix, chunks=[chunk])
    prompt = Prompt(prefix, (ChunkSegment(chunk, HeldRecord(record, print_)),), question)
    layout = lay_out(prompt, fingerprint=print_, window=decoder.window, vocabulary=decoder.vocabulary)
    with Readers(1) as readers:
        context, order = decoder.context(len(layout.ids)), BlendOrder("reuse")
        return fuse(decoder, layout, context=context, order=order, readers=readers)
