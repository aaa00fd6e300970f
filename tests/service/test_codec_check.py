"""A codec that does not fit a model is refused before anything is stored, with the name of one that does."""

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from blend.run.decoder import Decoder
from service.model import codec_check
from service.model.codec_check import check_codec
from service.settings import SettingsError
from store.record import LayerKV, Record
from tests.blend.families import FAMILIES, ours


def checked(monkeypatch: pytest.MonkeyPatch, codec: str, *, loud: float = 1.0, offset: float = 0.0) -> None:
    """Checks it on a model of two layers with one token as loud as this, and keys so far from zero."""
    random = np.random.default_rng(0)

    def tensor() -> np.ndarray:
        numbers = random.standard_normal((2, 128, 16), np.float32)
        numbers[:, 7] *= np.float32(loud)
        return numbers

    layers = tuple(LayerKV(tensor() + np.float32(offset), tensor()) for _ in range(2))
    record = Record("float32", layers)
    monkeypatch.setattr(codec_check, "capture", lambda *given, **more: [record])  # pyright: ignore[reportUnknownLambdaType]
    check_codec(cast(Decoder, SimpleNamespace(vocabulary=100, window=4096)), codec)


@pytest.mark.parametrize("codec", ["q2", "q4", "k4v2", "lossless", "q8@1-q2"])
@pytest.mark.parametrize("offset", [0.0, 50.0, -1000.0])
def test_a_codec_is_taken_wherever_keys_lie(monkeypatch: pytest.MonkeyPatch, codec: str, offset: float) -> None:
    checked(monkeypatch, codec, offset=offset)


def test_a_codec_that_loses_what_channels_tell_is_refused_with_a_better_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(SettingsError, match=r"'q2' is too coarse.*Set KVWEAVE_CODEC to q") as raised:
        checked(monkeypatch, "q2", loud=100)
    better = str(raised.value).partition("KVWEAVE_CODEC to ")[2].partition(",")[0]
    checked(monkeypatch, better, loud=100)


def test_a_codec_that_names_a_layer_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match="'q8@2-q4' names layer 2, the model has 2"):
        checked(monkeypatch, "q8@2-q4")


@pytest.mark.parametrize("name", FAMILIES)
def test_the_default_is_taken_for_every_family(name: str) -> None:
    check_codec(ours(name).decoder, "q4")
