"""Answers as text: characters, stop strings and ends, through the engine, for tokenizers of several kinds.

Stop strings also against a search in the whole text, for every way of cutting it.
"""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig

from blend.adopt.load import LoadedModel, adopt
from blend.engine.answer_builder import StopStrings
from blend.engine.engine import Done, EngineRequest, Token
from blend.engine.sampling import Sampling
from blend.fuse.prompt import Prompt
from tests.blend.asking import Asked, engine
from tests.blend.families import BASE, build, put
from tests.blend.tokenizers_made import end_of, made, token_of

KINDS = ("bytes", "metaspace-first", "prepend", "unigram")
WORDS = "Grüße 東京 👩‍🚀 café\nx"
PIECES = st.lists(st.text("ab", max_size=3), max_size=8)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), max_size=3).map(tuple)
EXAMPLES = 600


class Forced:
    """A logits processor that makes the model say these tokens."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = ids

    def __call__(self, ids: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        logits.fill_(float("-inf"))
        logits[self._ids[len(ids)]] = 0.0
        return logits


def model(kind: str) -> LoadedModel:
    tokenizer = made(kind)
    return adopt(put(build(LlamaConfig(**{**BASE, "vocab_size": len(tokenizer)}))), tokenizer)


def say(to: LoadedModel, ids: Sequence[int], *, count: int, stop: tuple[str, ...] = ()) -> Asked:
    sampling = Sampling(max_tokens=count, stop=stop, processor=Forced(ids))
    with engine(to) as running:
        return Asked(running, EngineRequest(Prompt((), (), (5, 6, 7)), sampling)).wait()


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_cut_anywhere_never_shows_half_a_character(kind: str) -> None:
    speaker = model(kind)
    ids = speaker.tokenizer.encode_text(WORDS)
    for count in range(1, len(ids) + 1):
        asked = say(speaker, ids, count=count)
        assert WORDS.startswith(asked.text)
        assert len(asked.text.encode()) > len(WORDS[: len(asked.text)].encode()) - 4
        assert asked.done.reason == "length"
    assert asked.text == WORDS


@pytest.mark.parametrize("kind", KINDS)
def test_a_stop_string_in_the_middle_of_a_tokens_text_cuts_there(kind: str) -> None:
    speaker = model(kind)
    ids = speaker.tokenizer.encode_text(WORDS)
    for stop in ("ß", "京", "\u200d", "é\n", "ü"):
        asked = say(speaker, ids, count=len(ids), stop=(stop,))
        assert asked.text == WORDS[: WORDS.index(stop)]
        assert asked.done.reason == "stop"


@pytest.mark.parametrize("kind", KINDS)
def test_the_end_token_ends_and_is_not_shown(kind: str) -> None:
    speaker = model(kind)
    ids = [*speaker.tokenizer.encode_text("done"), token_of(kind, end_of(kind)), 9, 9]
    asked = say(speaker, ids, count=50)

    assert asked.text == "done"
    assert asked.done.reason == "stop"
    assert asked.done.generated == len(ids) - 2


def test_every_piece_of_text_is_final() -> None:
    speaker = model("bytes")
    ids = speaker.tokenizer.encode_text(WORDS)
    seen = ""
    for event in say(speaker, ids, count=len(ids)).events:
        if isinstance(event, Token | Done):
            seen += event.text
            assert WORDS.startswith(seen)


def up_to_the_first(text: str, stops: tuple[str, ...]) -> str:
    return text[: min((text.find(stop) for stop in stops if stop in text), default=len(text))]


@settings(max_examples=EXAMPLES)
@given(PIECES, STOPS)
def test_what_leaves_is_the_text_up_to_the_first_stop_however_it_is_cut(
    pieces: list[str], stops: tuple[str, ...]
) -> None:
    watch, text = StopStrings(stops), "".join(pieces)
    left = "".join(watch.push(piece) for piece in pieces) + watch.finish()
    assert left == up_to_the_first(text, stops)
    assert watch.stopped == any(stop in text for stop in stops)


@settings(max_examples=EXAMPLES)
@given(PIECES, STOPS)
def test_no_character_waits_that_cannot_begin_a_stop(pieces: list[str], stops: tuple[str, ...]) -> None:
    watch, given_in, left = StopStrings(stops), "", ""
    for piece in pieces:
        left += watch.push(piece)
        given_in += piece
        if watch.stopped:
            break
        held = given_in.removeprefix(left)
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)
