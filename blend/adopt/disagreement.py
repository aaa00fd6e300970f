"""Where a decoder disagrees with transformers' own dense pass over the same tokens. Refuses nothing."""

from collections.abc import Sequence

import torch
from torch import Tensor

from blend.adopt.refusals import TOKENS
from blend.capture.capture import capture
from blend.fuse.fuse import BlendOrder, fuse
from blend.fuse.prompt import ChunkSegment, Prompt, lay_out
from blend.fuse.record_loader import Readers
from blend.run.context import Segment, scattered, span
from blend.run.decoder import Decoder
from store.fingerprint import Fingerprint
from store.record_source import HeldRecord

CHUNK = slice(12, 36)  # behind a prefix, before a question
AGAIN = (2, 3, 17, 30, 31, 47)  # rows computed a second time, each in its own slot
AGREES = {torch.float32: 1e-3}  # of the largest logit; half precision is compared as a whole
AGREES_HALF = 0.2  # experts chosen otherwise by a last bit are a tenth: for what is sound in float32, and quantizers


def disagreement(decoder: Decoder, plain: Tensor, *, ids: Sequence[int]) -> str | None:
    """Where our passes over 48 tokens differ from the model's own logits (T, V), computed densely; None if nowhere."""
    context = decoder.context(TOKENS + 1)
    tokens = torch.tensor(ids, device=decoder.device)
    whole = decoder.advance([Segment(context, span(0, TOKENS, device=decoder.device), 0)], tokens)
    again = scattered(AGAIN, device=decoder.device)
    rows = decoder.advance([Segment(context, again, 0)], tokens[again.index])
    pairs = (TOKENS - 4, TOKENS - 3), (TOKENS - 2, TOKENS - 1)  # records of either must fit both
    steps = torch.stack([each for pair in pairs for each in decoder.decode([(context, at, ids[at]) for at in pair])])
    assert whole is not None and rows is not None
    found = {
        "a prefill": _agree(whole, plain),
        "scattered rows": _agree(rows, plain[again.index]),
        "decoding": _agree(steps, plain[-4:]),
        "a chunk behind its prefix": _agree(_exact_hit(decoder, ids)[None], plain[-1:]),
    }
    return next((name for name, agrees in found.items() if not agrees), None)


def _agree(ours: Tensor, theirs: Tensor) -> bool:
    a, b = ours.float(), theirs.float()
    if not bool(torch.isfinite(a).all()):
        return False
    limit = AGREES.get(ours.dtype)
    if limit is not None:
        return bool((a - b).abs().max() <= limit * b.abs().max())
    return bool((a - b).square().sum() <= AGREES_HALF**2 * b.square().sum())


def _exact_hit(decoder: Decoder, ids: Sequence[int]) -> Tensor:
    prefix, chunk, question = tuple(ids[: CHUNK.start]), tuple(ids[CHUNK]), tuple(ids[CHUNK.stop :])
    print_ = Fingerprint("", "", "", "", "", "", "")
    [record] = capture(decoder, prefix, chunks=[chunk])
    prompt = Prompt(prefix, (ChunkSegment(chunk, HeldRecord(record, print_)),), question)
    layout = lay_out(prompt, fingerprint=print_, window=decoder.window, vocabulary=decoder.vocabulary)
    with Readers(1) as readers:
        context, order = decoder.context(len(layout.ids)), BlendOrder("reuse")
        return fuse(decoder, layout, context=context, order=order, readers=readers).logits
