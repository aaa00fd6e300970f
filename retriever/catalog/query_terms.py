"""Words as the lexical index knows them: folded, stemmed, and pairs of characters where a script has no spaces.

Every term is ASCII letters and digits, so that an index that cuts at anything else sees it whole. Knows no index.
"""

# Stemmer is not typed
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import re
import threading
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

import Stemmer

LONGEST = 64  # characters of a term; what is longer is no word
SEARCHED = 1_000_000  # characters of a chunk that are searched

VERSION = f"2 {unicodedata.unidata_version} {Stemmer.version()}"  # another value: terms of the same text may differ

# Scripts without spaces between words: Thai, Lao, Myanmar, Khmer, Hangul, kana, Han.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3005-\u3007\u3040-\u318f\u31a0-\u31bf\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\U0001b000-\U0001b16f\U00020000-\U0003347f"
)
# Vowel signs and the like belong to the word that they stand in, but Python's \w does not know them.
_MARKS = "".join(re.escape(chr(code)) for code in range(0x300, 0x10000) if unicodedata.category(chr(code))[0] == "M")
_WORDS = re.compile(rf"(?P<unspaced>[{_UNSPACED}]+)|(?:(?![{_UNSPACED}])[^\W_])(?:(?![{_UNSPACED}])[^\W_]|[{_MARKS}])*")
_ASCII_WORDS = re.compile(r"[a-zA-Z0-9]+")
_ACCENTS = re.compile("[\u0300-\u036f]+")
_UNSEEN = re.compile("[\u00ad\u200b-\u200d\u2060\ufeff]+")  # soft hyphens, joiners and breaks, within words
_PUNCTUATION = re.compile("[\u2000-\u206f]+")  # dashes, quotes and spaces of print, which stand in no word

_stemmer = Stemmer.Stemmer("porter")
_one_at_a_time = threading.Lock()


def terms(text: str) -> list[str]:
    """The terms of a chunk, in the order of the text, one for each time that a word stands there."""
    return _of(text[:SEARCHED], asked=False)


def query_terms(text: str) -> list[str]:
    """The terms of a query. One that ends in * stands for all that begin so: a character of a script without spaces."""
    return _of(text[:SEARCHED], asked=True)


def _of(text: str, *, asked: bool) -> list[str]:
    normal = text.lower() if text.isascii() else _normal(text)
    if normal.isascii():  # accents were all that was not, as in most Latin scripts
        return list(map(_stemmed, _ASCII_WORDS.findall(normal)))
    return list(_terms(normal, asked=asked))


def _terms(normal: str, *, asked: bool) -> Iterator[str]:
    for found in _WORDS.finditer(normal):
        word = found.group()
        if found["unspaced"]:
            yield from map(_spelled, _pairs(word))
            if not asked or len(word) == 1:  # so every character begins a term of its chunk
                yield _spelled(word[-1]) + "*" * asked
        else:
            yield _stemmed(word) if word.isascii() else _spelled(word[:LONGEST])


def _pairs(run: str) -> Iterator[str]:
    return (run[at : at + 2] for at in range(len(run) - 1))


def _normal(text: str) -> str:
    """The text with compatible forms made one, and without case, accents, punctuation of print and what nobody sees."""
    bare = _ACCENTS.sub("", unicodedata.normalize("NFKD", _UNSEEN.sub("", text).casefold()))
    return unicodedata.normalize("NFC", _PUNCTUATION.sub(" ", bare))


@lru_cache(maxsize=1 << 18)
def _stemmed(word: str) -> str:
    with _one_at_a_time:
        return _stemmer.stemWord(word[:LONGEST]) or word  # of "s" nothing would be left


@lru_cache(maxsize=1 << 16)
def _spelled(word: str) -> str:
    return "0x" + word.encode("utf-8", "surrogatepass").hex()
