"""The libraries of tenants, and the embedders that they share, loaded behind a start: the wanted one, tried
again and again, and those whose vectors still serve; passages are embedded in turns with captures."""

import json
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event, Thread

import numpy as np

from blend.engine.engine import Engine
from blend.errors import Busy
from retriever.embedders.embedding import Embedder, EmbedderAround, Embedders, Vectors, batches
from retriever.errors import EmbeddingError
from retriever.library import Library
from service.access.private import write_private
from service.settings import SettingsError
from service.telemetry.logs import fields

log = logging.getLogger(__name__)

FIRST_S, MOST_S = 5.0, 300.0  # until an embedder is tried again; each time twice as long
TEXTS, CHARACTERS = 8, 8192  # of a part at most: a tenth of a second of a small encoder, on one core

_FOLDERS = re.compile(r"(?<![\w:/])(?:~|\.{1,2})?/(?:[^\s/'\"]+/)*(?=[^\s/'\"])")  # of a path, and of no address

Serving = Callable[[], Iterable[str]]  # tells the names of embedders whose vectors are searched


def without_folders(text: str) -> str:
    """A sentence for whoever asks: what is loaded from a folder goes by the folder's own name."""
    return _FOLDERS.sub("", text)


@dataclass(frozen=True, slots=True)
class Libraries:
    """`open` opens the library of a tenant, with the `embedders` as far as they are there.

    `source`: what the wanted embedder is loaded from, empty for one that is no folder and no name of the hub. `load`
    raises SettingsError or EmbeddingError. `kept`: a file of what embedders were loaded from, by their names.
    """

    open: Callable[[str], Library]
    embedders: Embedders
    source: str
    load: Callable[[str], Embedder]
    kept: Path
    _stopped: Event = field(default_factory=Event)

    def begin(self, serving: Serving, *, then: Callable[[], None]) -> None:
        """Loads embedders in a thread of its own, and calls `then` when some have come."""
        if self.source or self._sources():
            Thread(target=self._load_behind, args=[serving, then], name="kvweave-embedder", daemon=True).start()

    def load_now(self, serving: Serving) -> str:
        """Tries once to load what is not there. Returns why the wanted one is not; empty where none is wanted, too."""
        problem = self._load_wanted()
        self._load_serving(serving)
        return problem

    def close(self) -> None:
        """Loads nothing more."""
        self._stopped.set()

    def _load_behind(self, serving: Serving, then: Callable[[], None]) -> None:
        problem, pause = self.load_now(serving), FIRST_S
        then()
        if problem:
            log.warning("search is by words until the embedder comes: it is tried again", extra=fields(reason=problem))
        while problem and not self._stopped.wait(pause):
            pause, problem = min(2 * pause, MOST_S), self._load_wanted()
            if not (problem or self._stopped.is_set()):
                log.info("the embedder has come", extra=fields(embedder=self.source))
                then()

    def _load_wanted(self) -> str:
        embedders = self.embedders
        if not self.source:
            return ""
        try:
            embedders.wanted = embedders.wanted or self.load(self.source)
        except (SettingsError, EmbeddingError) as error:
            embedders.lacks = without_folders(str(error))
            return str(error)
        embedders.is_awaited = False
        sources = self._sources()
        if sources.get(embedders.wanted.name) != self.source and self.kept.parent.is_dir():
            write_private(self.kept, json.dumps({**sources, embedders.wanted.name: self.source}).encode())
        return ""

    def _load_serving(self, serving: Serving) -> None:
        """Loads those whose vectors serve until the wanted one's are all made, where it is known from what."""
        known, sources = {each.name for each in self.embedders.known}, self._sources()
        for name in {*serving()} & sources.keys() - known:
            try:
                found = self.load(sources[name])
            except (SettingsError, EmbeddingError) as error:
                reason = {"embedder": sources[name], "reason": str(error)}
                log.warning("an embedder whose vectors serve cannot be loaded", extra=fields(**reason))
                continue
            if found.name == name:
                self.embedders.others = (*self.embedders.others, found)

    def _sources(self) -> dict[str, str]:
        try:
            return {str(name): str(source) for name, source in json.loads(self.kept.read_bytes()).items()}
        except (OSError, ValueError, AttributeError):  # none is kept, or it is of another release
            return {}


class TurnTaking(EmbedderAround):
    """An embedder that computes here, in turns with captures: no question waits for a long document's vectors.

    Questions' vectors take no turn: whoever asks is before all captures anyway.
    """

    def __init__(self, embedder: Embedder, engine: Engine) -> None:
        super().__init__(embedder)
        self._engine = engine

    def passages(self, texts: Sequence[str]) -> Vectors:
        places = batches(texts, count=TEXTS, characters=CHARACTERS)
        parts = [partial(self._embedder.passages, texts[each.start : each.stop]) for each in places]
        if not parts:
            return np.empty((0, self.dim), np.float32)
        try:
            return np.concatenate(self._engine.compute(parts).result())
        except Busy as error:
            raise EmbeddingError(str(error), temporary=True) from error
