"""A codec that does not fit a model is refused before anything is stored, with the name of one that does."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from service.model.codec_check import check_codec
from service.model.served_model import ServedModel
from service.settings import SettingsError
from store.record import LayerKV, Record


def served(codec: str, *, loud: float = 1.0, offset: float = 0.0) -> ServedModel:
    """A model of two layers with one token as loud as this, and keys so far from zero."""
    random = np.random.default_rng(0)

    def tensor() -> np.ndarray:
        numbers = random.standard_normal((2, 128, 16), np.float32)
        numbers[:, 7] *= np.float32(loud)
        return numbers

    layers = tuple(LayerKV(tensor() + np.float32(offset), tensor()) for _ in range(2))
    done: Future[list[Record]] = Future()
    done.set_result([Record("float32", layers)])
    engine = SimpleNamespace(capture=lambda prefix, chunks: done)
    return cast(ServedModel, SimpleNamespace(engine=engine, codec=codec, vocabulary=100, window=4096))


@pytest.mark.parametrize("codec", ["q2", "q4", "k4v2", "lossless", "q8@1-q2"])
@pytest.mark.parametrize("offset", [0.0, 50.0, -1000.0])
def test_a_codec_is_taken_wherever_keys_lie(codec: str, offset: float) -> None:
    check_codec(served(codec, offset=offset))


def test_a_codec_that_loses_what_channels_tell_is_refused_with_one_that_does_not() -> None:
    with pytest.raises(SettingsError, match=r"'q2' is too coarse.*Set KVWEAVE_CODEC to q") as raised:
        check_codec(served("q2", loud=100))
    better = str(raised.value).partition("KVWEAVE_CODEC to ")[2].partition(",")[0]
    check_codec(served(better, loud=100))


def test_a_codec_that_names_a_layer_that_is_not_there_is_refused() -> None:
    with pytest.raises(SettingsError, match="'q8@2-q4' names layer 2, the model has 2"):
        check_codec(served("q8@2-q4"))
