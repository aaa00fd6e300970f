"""Which chunks past questions needed most, and a store that takes no more bytes than a budget. Asks no model."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from retriever.filter_condition import scope
from retriever.library import Library
from retriever.search import Query
from service.errors import Invalid
from store.blob import Blob
from store.blob_store import BlobStore, Put
from store.key import CacheKey

TEXTS = ("question", "query", "prompt")
PIECE_BYTES = 5 << 10  # more than what a medium of pages adds to the head of a blob, or to a frame


@dataclass(frozen=True, slots=True)
class CacheBudget:
    """Bytes that a corpus's caches may take, and the questions that say which come first."""

    nbytes: int
    questions: tuple[str, ...] = ()


def read_log(path: Path) -> tuple[str, ...]:
    """The questions of a JSONL file: a text a line, `question`, `query`, `prompt`, or the last of `messages`."""
    try:
        lines = path.read_text("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"--queries {path} cannot be read: {error}") from None
    questions = [_question(line, f"{path}:{number}") for number, line in enumerate(lines, start=1) if line.strip()]
    if not questions:
        raise Invalid(f"--queries {path} holds no question: leave it out, or name a log with a JSON object a line")
    return tuple(questions)


def _question(line: str, place: str) -> str:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"{place} is no JSON: {error}") from None
    if isinstance(found, dict):
        entry = cast("dict[str, object]", found)
        messages = entry.get("messages")
        if isinstance(messages, list) and messages and isinstance(messages[-1], dict):
            entry = {"question": cast("dict[str, object]", messages[-1]).get("content")}
        found = next((entry[name] for name in TEXTS if entry.get(name)), None)
    if not isinstance(found, str) or not found.strip():
        raise Invalid(f"{place} has no question: write one as {', '.join(TEXTS)} or the last of messages")
    return found


def needs(library: Library, questions: Iterable[str], *, collection: str, top_k: int) -> Counter[str]:
    """How many of the questions a search would bring each chunk for."""
    counts: Counter[str] = Counter()
    for question, times in Counter(questions).items():
        hits = library.search(Query(question, top_k, allowed=scope(collection)))
        counts.update({hit.passage.id: times for hit in hits})
    return counts


class BudgetedStore:
    """A store that takes blobs in the order of their need until one does not fit, and then none.

    `spare` are stored ones, the least needed last: they leave for a blob that more questions need. `room` measures how
    many bytes of the medium are left. What a new blob takes there shows when it is stored: until then it counts as the
    most that it may take.
    """

    def __init__(
        self, store: BlobStore, room: Callable[[], int], *, spare: Sequence[tuple[CacheKey, int]], need: Counter[str]
    ) -> None:
        self.is_full = False
        self.dropped = 0
        self._store = store
        self._measured = room
        self._room = room()
        self._spare = list(spare)
        self._need = need

    def epoch(self, tenant: str) -> int:
        return self._store.epoch(tenant)

    def put_all(self, blobs: Sequence[Blob]) -> list[Put]:
        """Stores the blobs that fit; all behind the first that does not are over budget."""
        puts: list[Put] = []
        fitting: list[Blob] = []
        for blob in () if self.is_full else blobs:
            if not self._fits(blob):
                puts += self._put(fitting)
                fitting = []
                self._room = self._measured()
                self.is_full = self.is_full or not self._fits(blob)
            if self.is_full:
                break
            self._room -= _most(blob)
            fitting.append(blob)
        puts += self._put(fitting)
        return [*puts, *[Put.OVER_BUDGET] * (len(blobs) - len(puts))]

    def replace(self, blob: Blob) -> Put:
        return self.put_all([blob])[0]

    def _put(self, blobs: Sequence[Blob]) -> list[Put]:
        puts = self._store.put_all(blobs)
        self.is_full = self.is_full or Put.OVER_BUDGET in puts  # the store has a budget of its own
        return puts

    def _fits(self, blob: Blob) -> bool:
        """Does the blob fit, once the spare ones have left that must?"""
        wanted, free, leaving = self._need[blob.head.key.chunk], self._room, 0
        for key, nbytes in reversed(self._spare):
            if free >= _most(blob) or self._need[key.chunk] >= wanted:
                break
            free, leaving = free + nbytes, leaving + 1
        if free < _most(blob):  # nothing leaves for a blob that does not fit even so
            return False
        for _ in range(leaving):
            self.dropped += self._store.discard(self._spare.pop()[0])
        self._room = free
        return True


def _most(blob: Blob) -> int:
    return blob.nbytes + PIECE_BYTES * (1 + len(blob.frames))
