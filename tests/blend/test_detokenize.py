"""The text of an answer while it comes."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blend.text.tokenizer import Detokenizer, Tokenizer
from tests.blend.tokenizers_made import KINDS, LOSSLESS, end_of, fresh, made, token_of

WRAPPED = {kind: Tokenizer(made(kind)) for kind in KINDS}
FRAGMENTS = [
    "👩\u200d👩\u200d👧",
    "🇯🇵",
    "東京",
    " ",
    "  ",
    "\n",
    "é",
    "e\u0301",
    "the fox",
    "\x00",
    "<|im_end|>",
    "</s>",
    "☃",
]

SURROGATE = re.compile(rb"\xed[\xa0-\xbf]\Z")  # the first two of its three bytes
texts = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=4), max_size=8).map("".join)


def stream(kind: str, ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(WRAPPED[kind])
    return [*(detokenizer.push(token) for token in ids), detokenizer.finish()]


@given(st.sampled_from(LOSSLESS), texts)
def test_a_text_streams_as_it_was_written_and_never_shows_half_a_character(kind: str, text: str) -> None:
    text = text.replace("▁", "_").replace("\ufffd", "?")
    shown = stream(kind, WRAPPED[kind].encode_text(text))
    assert "".join(shown) == text
    assert "\ufffd" not in "".join(shown)


@given(st.sampled_from(KINDS), st.data())
def test_any_ids_stream_as_they_decode_but_for_an_unfinished_end(kind: str, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, len(made(kind)) + 3), max_size=30))
    shown = "".join(stream(kind, ids))
    told = [token for token in ids if token not in WRAPPED[kind].control]
    is_surrogate = SURROGATE.search(b"".join(map(WRAPPED[kind].token_bytes, told)))  # which is two to the tokenizer
    assert WRAPPED[kind].decode(told) in (shown, shown + "\ufffd", shown + "\ufffd" * 2 if is_surrogate else shown)


@pytest.mark.parametrize("kind", LOSSLESS)
def test_an_emoji_comes_with_its_last_byte_and_an_unfinished_one_never(kind: str) -> None:
    ids = WRAPPED[kind].encode_text("🦊")
    assert len(ids) == 4
    assert stream(kind, ids) == ["", "", "", "🦊", ""]
    assert stream(kind, ids[:-1]) == ["", "", "", ""]
    assert "".join(stream(kind, [*ids[:2], *ids])) == "\ufffd🦊"


def test_a_replacement_character_that_the_model_writes_is_shown_at_once() -> None:
    source = fresh("bytes")
    source.add_tokens(["\ufffd"])
    tokenizer = Tokenizer(source)
    (token,) = source.encode("\ufffd", add_special_tokens=False)
    assert Detokenizer(tokenizer).push(token) == "\ufffd"


@pytest.mark.parametrize("kind", KINDS)
def test_control_tokens_are_not_shown_unless_asked_for(kind: str) -> None:
    tokenizer = WRAPPED[kind]
    call, end = token_of(kind, "<tool_call>"), token_of(kind, end_of(kind))
    assert stream(kind, [call, end]) == ["", "", ""]
    curious = Detokenizer(tokenizer, hidden=tokenizer.special)
    assert [curious.push(call), curious.push(end)] == ["<tool_call>", ""]


def test_every_token_is_looked_at_once_however_long_the_answer() -> None:
    seen: list[int] = []

    class Counting(Tokenizer):
        def token_bytes(self, token: int) -> bytes:
            seen.append(token)
            return super().token_bytes(token)

    tokenizer = Counting(made("bytes"))
    ids = tokenizer.encode_text("naïve 東京 🦊 " * 50)
    detokenizer = Detokenizer(tokenizer)
    for token in ids:
        detokenizer.push(token)
    assert seen == ids
