"""Counts tokens in batches. Knows no model: the counter here estimates what a byte-pair tokenizer would say."""

import re
from collections.abc import Callable, Iterable, Sequence

Counter = Callable[[Sequence[str]], Sequence[int]]  # the tokens of each text; called with many texts at once

_IDEOGRAPHS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
_TOKEN = re.compile(rf"[^\W\d_{_IDEOGRAPHS}]{{1,8}}|\d{{1,3}}|[{_IDEOGRAPHS}]|[^\w\s]|\w")
_BATCH_TEXTS = 1 << 13
_BATCH_CHARACTERS = 1 << 22


def count_words(texts: Sequence[str]) -> list[int]:
    """Estimates tokens: one for up to eight letters, three digits, an ideograph or other sign; none for white space."""
    return [len(_TOKEN.findall(text)) for text in texts]


def count_all(texts: Iterable[str], count: Counter) -> list[int]:
    """The tokens of every text, asked for in batches that bound the memory a tokenizer takes."""
    counts: list[int] = []
    batch: list[str] = []
    characters = 0
    for text in texts:
        batch.append(text)
        characters += len(text)
        if len(batch) == _BATCH_TEXTS or characters >= _BATCH_CHARACTERS:
            counts += _counted(batch, count)
            batch, characters = [], 0
    return counts + _counted(batch, count) if batch else counts


def _counted(batch: list[str], count: Counter) -> list[int]:
    counts = list(count(batch))
    if len(counts) != len(batch):
        raise ValueError(f"the counter was given {len(batch)} texts and answered {len(counts)} counts: one each")
    return counts
