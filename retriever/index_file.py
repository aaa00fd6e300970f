"""A vector index in a file: written whole or not at all, and read only if every byte is what was written."""

import fcntl
import json
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

from blake3 import blake3

from retriever.nearest import Nearest

FORMAT = 1


class IndexFile:
    """`<stem>.json` names the data file of the index, its digest, and its owner's facts."""

    def __init__(self, folder: Path, stem: str) -> None:
        self._folder = folder
        self._stem = stem
        self._head = folder / f"{stem}.json"

    def write(self, nearest: Nearest, facts: Mapping[str, str | int]) -> None:
        """Replaces the index. Readers that have the old one open keep it; other writers wait."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / f"{self._stem}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # until it is closed, or its process ends
            self._write(nearest, dict(facts))

    def _write(self, nearest: Nearest, facts: dict[str, str | int]) -> None:
        data = self._folder / f"{self._stem}-{uuid4().hex}.faiss"
        unfinished = data.with_suffix(".tmp")
        nearest.write(unfinished)
        digest = _digest(unfinished, facts)
        unfinished.replace(data)
        head = self._folder / f"{self._stem}-{uuid4().hex}.json.tmp"
        head.write_text(json.dumps({"format": FORMAT, "data": data.name, "digest": digest, "facts": facts}))
        head.replace(self._head)
        for old in self._folder.glob(f"{self._stem}-*"):
            if old != data:
                old.unlink(missing_ok=True)

    def read(self) -> tuple[Nearest, dict[str, str | int]] | None:
        """The index and its facts; None where there is none, or where it is damaged."""
        try:
            head = json.loads(self._head.read_text())
            data = self._folder / Path(head["data"]).name
            if head["format"] != FORMAT or _digest(data, head["facts"]) != head["digest"]:
                return None
            return Nearest.read(data), head["facts"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None


def _digest(path: Path, facts: dict[str, str | int]) -> str:
    """A digest of the file and of the facts too: a wrong number in them would hide vectors."""
    told = json.dumps(facts, sort_keys=True).encode()
    return blake3(told, max_threads=blake3.AUTO).update_mmap(path).hexdigest()
