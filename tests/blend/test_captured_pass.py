"""What is taken for all chunks of a pass at once, against each chunk alone, bit for bit."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from blend.adopt.load import adopt
from blend.capture import capture as module
from blend.capture.capture import capture
from blend.capture.captured_pass import CapturedPass, ChunkRows, Layers
from blend.errors import NotFinite
from blend.place.rotation import unrotate
from blend.run.context import Context, PrefixedContext, Segment, places, span
from blend.run.decoder import Decoder
from store.record import Array
from tests.blend.counted import Counted
from tests.blend.families import FAMILIES, build, draw, ours, put, words

POSITION = 11
SOME = [
    "llama",
    "gemma4",
    "phi3-partial",
    "cohere2",
    "smollm3",
    "deepseek-v3",
    "gpt-oss",
]  # deepseek's values turn, too


@cache
def decoder(name: str, dtype: str) -> Decoder:
    if dtype == "float32":
        return ours(name).decoder
    return adopt(put(build(FAMILIES[name]()).bfloat16()), words()).decoder


def filled(of: Decoder, capacity: int) -> Context:
    context = of.context(capacity)
    for layer in context.layers:
        for room in context.part(layer, slice(None)):
            room.normal_(generator=torch.Generator(of.device).manual_seed(layer))
    return context


def whole(*counts: int) -> tuple[range, ...]:
    """The rows of chunks of so many tokens, with nothing before them."""
    return tuple(map(range, counts))


@dataclass(frozen=True)
class Alone:
    """One chunk where it stands."""

    start: int
    tokens: int
    position: int

    def unrotated(self, of: Decoder, context: Context, *, layer: int) -> tuple[Tensor, Tensor]:
        rule, slots = of.rule(layer), slice(self.position, self.position + self.tokens)
        angles = of.angles_at(rule, slots, stop=slots.stop)
        keys, values = context.part(layer, slice(self.start, self.start + self.tokens))
        return unrotate(keys, rule.keys, angles=angles), unrotate(values, rule.values, angles=angles)


def bits(x: Tensor | Array) -> bytes:
    return x.tobytes() if isinstance(x, np.ndarray) else x.cpu().contiguous().view(torch.uint8).numpy().tobytes()


def check(of: Decoder, context: Context, *, rows: ChunkRows) -> None:
    found: list[Layers] = CapturedPass(of, context, rows=rows).layers()
    assert len(found) == len(rows.counts)
    for number, (tokens, layers) in enumerate(zip(rows.counts, found, strict=True)):
        alone = Alone(rows.start + number * rows.size, tokens, rows.position)
        assert [layer for layer, each in enumerate(layers) if each] == of.model_layers.keeping
        for layer in of.model_layers.keeping:
            got, wanted = layers[layer], alone.unrotated(of, context, layer=layer)
            assert got is not None
            assert got.shapes == tuple(each.shape for each in wanted)
            assert (bits(got.keys), bits(got.values)) == (bits(wanted[0]), bits(wanted[1]))
            assert got.keys.flags.c_contiguous and got.values.flags.c_contiguous


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", SOME)
def test_chunks_that_are_taken_together_are_what_each_is_alone(name: str, dtype: str) -> None:
    of = decoder(name, dtype)
    check(of, filled(of, 4 * 32), rows=ChunkRows(whole(32, 1, 17, 31), 32, 0, POSITION))


@pytest.mark.parametrize("name", ["llama", "deepseek-v3"])
def test_so_are_parts_of_a_long_one(name: str) -> None:
    of = decoder(name, "float32")
    check(of, filled(of, 96), rows=ChunkRows(whole(32), 32, 32, POSITION + 32))
    check(of, filled(of, 96), rows=ChunkRows(whole(5), 32, 64, POSITION + 64))


def test_the_families_of_the_test_have_what_differs() -> None:
    rules = [rule for name in SOME for rule in decoder(name, "float32").model_layers.rules]
    assert any(rule is None for rule in rules)
    assert any(rule and rule.values for rule in rules)
    assert any(rule and not rule.turns for rule in rules)
    assert {rule.keys.pairing for rule in rules if rule and rule.keys} == {"halves", "neighbours"}


@pytest.mark.parametrize("name", ["llama", "gemma4"])
def test_many_chunks_take_as_many_calls_as_one(name: str) -> None:
    of = decoder(name, "bfloat16")

    def calls(*counts: int) -> int:
        context, rows = filled(of, 32 * len(counts)), ChunkRows(whole(*counts), 32, 0, POSITION)
        with Counted() as counted:
            CapturedPass(of, context, rows=rows)
        return counted.calls

    of.prepare(POSITION + 32)
    assert calls(20) == calls(32, 1, 5, 31, 32, 8, 9, 20) < 40 * len(of.model_layers.keeping) + 20


def test_what_is_not_finite_is_told_by_the_first_layer_that_has_it() -> None:
    of, rows = decoder("llama", "float32"), ChunkRows(whole(20, 7), 32, 0, POSITION)
    for bad in (np.nan, np.inf, -np.inf):
        for part in range(2):
            context = filled(of, 64)
            context.part(2, slice(None))[part][1, 32 + 6, 3] = context.keys(3)[0, 0, 0] = bad
            with pytest.raises(NotFinite, match="layer 2 computed"):
                CapturedPass(of, context, rows=rows).layers()


def test_rows_that_hold_no_token_may_be_anything() -> None:
    of = decoder("llama", "float32")
    context = filled(of, 64)
    context.values(2)[:, 20:32] = context.keys(1)[:, 32 + 7 :] = np.inf
    check(of, context, rows=ChunkRows(whole(20, 7), 32, 0, POSITION))


def test_records_beyond_what_may_be_pinned_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    of, prefix, chunks = decoder("llama", "bfloat16"), draw(3, POSITION)[0], draw(4, 30, 20, 64, 700)
    pinned = capture(of, prefix, chunks=chunks)
    monkeypatch.setattr(module, "PINNED_BYTES", 0)
    monkeypatch.setattr(CapturedPass, "is_pinned", True)
    for one, other in zip(pinned, capture(of, prefix, chunks=chunks), strict=True):
        for mine, its in zip(one.layers, other.layers, strict=True):
            assert mine and its
            assert (bits(mine.keys), bits(mine.values)) == (bits(its.keys), bits(its.values))


def test_rows_of_chunks_side_by_side_are_written_by_one_call() -> None:
    of = decoder("llama", "float32")
    before, rest, dummy = of.context(POSITION), of.context(96), of.context(32)
    slots, nowhere = span(POSITION, POSITION + 32, device=of.device), span(0, 32, device=of.device)
    chunks = [PrefixedContext(before, POSITION, own=rest, part=slice(start, start + 32)) for start in (0, 32, 64)]
    segments = [Segment(each, slots, row * 32) for row, each in enumerate(chunks)]

    found = places([*segments, Segment(dummy, nowhere, 96), Segment(dummy, nowhere, 128)])

    assert [(each.context, each.where, each.start, each.stop) for each in found] == [
        (rest, slice(0, 96), 0, 96),
        (dummy, slice(0, 32), 96, 128),
        (dummy, slice(0, 32), 128, 160),
    ]
