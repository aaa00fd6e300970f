"""The files below a place in object storage. Each is fetched when it is read, which is when it has changed."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from retriever.readers.files import SUFFIXES, why_aside
from retriever.readers.reading import MAX_BYTES, ReadingProblem, megabytes
from service.documents.corpus_listing import CorpusFile

if TYPE_CHECKING:
    from store.objects.object_client import ObjectClient


class CorpusObjects:
    """The files of one argument, of known formats; what is left out of folders is left out here."""

    def __init__(self, folder: "ObjectClient") -> None:
        self.base = folder.label.rstrip("/")
        self._folder = folder

    def files(self) -> Iterator[CorpusFile | ReadingProblem]:
        """Lists them; raises StoreError where the place does not answer."""
        for each in self._folder.listing(""):
            path = PurePosixPath(each.path)
            if path.suffix.lower() not in SUFFIXES or any(map(why_aside, path.parts)):
                continue
            name = f"{self.base}/{path}"
            if each.nbytes > MAX_BYTES:
                yield ReadingProblem(name, f"it has {megabytes(each.nbytes)}, at most {megabytes(MAX_BYTES)}: split it")
                continue
            signature, fetch = f"{each.nbytes} {each.modified}", partial(self._fetched, each.path)
            yield CorpusFile(Path(each.path), name, self.base, each.nbytes, signature, fetch)

    def _fetched(self, path: str) -> bytes:
        found = self._folder.read(path, range(MAX_BYTES))
        if found is None:
            raise OSError("it is gone meanwhile")
        return bytes(found.data)
