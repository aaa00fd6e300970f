"""The spec strings: what they mean layer by layer, and which are refused."""

import pytest

from store.codec.spec import KVBits, Spec
from store.errors import SpecError

LAYERS = {
    "lossless": [None] * 4,
    "q4": [KVBits(4, 4)] * 4,
    "k4v2": [KVBits(4, 2)] * 4,
    "q6@2-k4v2": [KVBits(6, 6)] * 2 + [KVBits(4, 2)] * 2,
    "q2.3@1-k1.5v2.9": [KVBits(2.3, 2.3)] + [KVBits(1.5, 2.9)] * 3,
    "lossless@1-q8@3-k2v3": [None, KVBits(8, 8), KVBits(8, 8), KVBits(2, 3)],
}


@pytest.mark.parametrize("text", LAYERS)
def test_a_spec_says_the_bits_of_every_layer_and_is_spelled_one_way(text: str) -> None:
    spec = Spec.parse(text)
    assert [spec.bits(layer) for layer in range(4)] == LAYERS[text]
    assert spec.text == text


def test_equal_bits_have_one_name() -> None:
    assert Spec.parse("k4v4").text == "q4"
    assert Spec.parse("k2.3v2.3").text == "q2.3"


@pytest.mark.parametrize(
    "text",
    ["", "q1", "q9", "Q4", "k4", "v2", "k4v9", "q4@", "q4@3", "q4-q2", "q4@0-q2", "q4@-q2", "q4@2-", "@2-q4", "q4@2-q4",
     "q8@3-q4@2-q2", "q8@2-q4@2-q2", "lossless@1-lossless", "q4 ", "q4@٣-q2", "q4@" + "0" * 32, "q4@100000-q2",
     "q1.4", "q3.5", "q2.0", "q2.", "q2.35", "k2v2,5"],
)  # fmt: skip
def test_what_names_no_codec_is_refused_with_what_would(text: str) -> None:
    with pytest.raises(SpecError, match="as in q6@4-") as raised:
        Spec.parse(text)
    assert repr(text) in str(raised.value)
