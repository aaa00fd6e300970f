"""The files of a corpus and what tells whether one changed. Reads what is in them when it is asked to."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from glob import has_magic
from pathlib import Path

from retriever.documents import Draft
from retriever.readers.files import read_file, walk
from retriever.readers.reading import ReadingProblem
from service.errors import Invalid


@dataclass(frozen=True, slots=True)
class CorpusFile:
    """`name` tells it from the others: its path from the folder that was named, with that, wherever the corpus lies.

    A file that was named itself has its path from the present folder.
    """

    path: Path
    name: str
    signature: str


@dataclass(frozen=True, slots=True)
class FileDocuments:
    """What a file became, documents with ids."""

    file: CorpusFile
    drafts: tuple[Draft, ...]
    problems: tuple[ReadingProblem, ...]


def files(given: Sequence[str]) -> Iterator[CorpusFile | ReadingProblem]:
    """The files of paths and patterns, in order. Two of one name raise Invalid: documents would replace each other."""
    seen: dict[str, Path] = {}
    for root in _roots(given):
        for path, refusal in walk([root]):
            if refusal is not None:
                yield from refusal.problems
                continue
            name = _name(path, root)
            if seen.get(name) == _absolute(path):
                continue
            if name in seen:
                raise Invalid(f"{seen[name]} and {path} would both be {name!r}: name a folder that holds both")
            seen[name] = _absolute(path)
            try:
                found = path.stat()
            except OSError as error:
                yield ReadingProblem(str(path), f"it cannot be read ({error.strerror or error})")
                continue
            yield CorpusFile(path, name, f"{found.st_size} {found.st_mtime_ns}")


def read_in(file: CorpusFile) -> FileDocuments:
    """Reads a file. Its documents keep the ids that they bring; a lone one gets the file's name, others name#place."""
    reading = read_file(file.path)
    drafts = [
        draft if draft.id else replace(draft, id=file.name if len(reading.drafts) == 1 else f"{file.name}#{place}")
        for place, draft in enumerate(reading.drafts)
    ]
    return FileDocuments(file, tuple(drafts), reading.problems)


def _roots(given: Iterable[str]) -> Iterator[Path]:
    for each in given:
        path = Path(each)
        if path.exists() or not has_magic(each):
            if not path.exists():
                raise Invalid(f"{each!r} is no file and no folder: name what is to be read")
            yield path
            continue
        matches = sorted(_matching(path))
        if not matches:
            raise Invalid(f"no file fits {each!r}: name what is to be read")
        yield from matches


def _matching(pattern: Path) -> Iterator[Path]:
    anchor = Path(pattern.anchor)
    return anchor.glob(str(pattern.relative_to(anchor)))


def _name(path: Path, root: Path) -> str:
    """The file's name: text in any case, with slashes on every system."""
    whole, here = _absolute(path), Path.cwd()
    above = here if path == root and whole.is_relative_to(here) else _absolute(root).parent
    below = whole.relative_to(above)
    return below.as_posix().encode("utf-8", "replace").decode()


def _absolute(path: Path) -> Path:
    """The absolute path, without following links: what is linked in is named by where it is linked."""
    return Path(os.path.normpath(Path.cwd() / path))
