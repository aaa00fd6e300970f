"""Which files a run's arguments name, and which known ones are gone; refuses to prune all that a place had."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import has_magic
from os.path import lexists, normpath
from pathlib import Path
from typing import Protocol

from retriever.readers.files import walk
from retriever.readers.reading import ReadingProblem
from retriever.types import SourceFile
from service.documents.source_names import SourceNames, as_text, below
from service.errors import Invalid


@dataclass(frozen=True, slots=True)
class CorpusFile:
    """`name` tells it from the others, wherever the corpus lies: its path from `base`.

    That is the folder that holds the one that was named, or the present one for a file that was named itself.
    """

    path: Path
    name: str
    base: str
    nbytes: int
    signature: str
    fetch: Callable[[], bytes] | None = None  # its content, where it does not lie at `path`


@dataclass(frozen=True, slots=True)
class Vanished:
    """What was named elsewhere and is not there. Where it is known, it may be pruned; else it is a problem."""

    name: str
    reason: str


class RemoteFiles(Protocol):
    """Files that lie elsewhere. `base` is that of all of them."""

    @property
    def base(self) -> str: ...

    def files(self) -> Iterator[CorpusFile | Vanished | ReadingProblem]:
        """Lists them in order."""
        ...


@dataclass(frozen=True, slots=True)
class CorpusArgument:
    """A file, a folder or a pattern. `roots`: itself, or all that fits it. `remote`: what it names instead."""

    given: str
    roots: tuple[Path, ...] = ()
    remote: RemoteFiles | None = None

    @property
    def is_pattern(self) -> bool:
        """Does it name what fits it, and not itself?"""
        return self.roots != (Path(self.given),)


def arguments(
    given: Iterable[str], remote: Callable[[str], RemoteFiles | None] = lambda _: None
) -> list[CorpusArgument]:
    """Reads them. Raises Invalid for one that names nothing. `remote` says which lie elsewhere."""
    found = [(each, remote(each)) for each in given]
    return [CorpusArgument(each, () if there else tuple(_roots(each)), there) for each, there in found]


def files(given: Sequence[str]) -> Iterator[CorpusFile | ReadingProblem]:
    """The files of paths and patterns, in order, where nothing is known of them."""
    return CorpusListing(arguments(given), {}).walk()


class CorpusListing:
    """The files of one run, which are walked once, and what of the known ones is not among them then."""

    def __init__(self, named: Sequence[CorpusArgument], known: Mapping[str, SourceFile]) -> None:
        self._arguments = named
        self._known = known
        self._names = SourceNames(known)
        self._seen: dict[str, Path] = {}
        self._bases: dict[Path, Path] = {}  # of roots
        self.skipped: list[Path] = []  # in folders: what is hidden or of no known format
        self._counts: Counter[str] = Counter()  # files of each argument

    @property
    def moved(self) -> dict[str, Path]:
        """The folders from which something is gone that was taken as moved, and the first of it where it is now."""
        return self._names.moved

    def walk(self) -> Iterator[CorpusFile | ReadingProblem]:
        """Yields the files in order. Two of one name raise Invalid: documents would replace each other."""
        for argument in self._arguments:
            if argument.remote is not None:
                yield from self._remote(argument, argument.remote)
            for root in argument.roots:
                base = self._bases[root] = self._names.base(_absolute(root), _usual_base(root))
                for path, refusal in walk([root], self.skipped.append):
                    if refusal is not None:
                        yield from refusal.problems
                        continue
                    self._counts[argument.given] += 1
                    yield from self._file(path, base)

    def gone(self, known: Mapping[str, SourceFile], *, empty: bool = False) -> dict[str, SourceFile]:
        """The known files that an argument names, and that were not found there.

        Raises Invalid where all of an argument is gone, as of a volume that is not mounted, unless `empty` allows it.
        """
        found: dict[str, SourceFile] = {}
        for argument in self._arguments:
            names = self._remote_names if argument.remote else self._fitting if argument.is_pattern else self._inside
            gone = {name: known[name] for name in names(argument, known) if name not in self._seen}
            if gone and not empty and not self._counts[argument.given]:
                raise Invalid(
                    f"--prune: {argument.given} holds no file, where {len(gone):,} were ({next(iter(gone))}): "
                    "is it mounted? Leave --prune out, or add --empty to delete all their documents"
                )
            found |= gone
        return found

    def _remote(self, argument: CorpusArgument, remote: RemoteFiles) -> Iterator[CorpusFile | ReadingProblem]:
        for each in remote.files():
            if isinstance(each, CorpusFile):
                self._counts[argument.given] += 1
                if each.name in self._seen:
                    continue
                self._seen[each.name] = each.path
            if not isinstance(each, Vanished):
                yield each
            elif each.name not in self._known:
                yield ReadingProblem(each.name, each.reason)

    def _remote_names(self, argument: CorpusArgument, known: Mapping[str, SourceFile]) -> Iterator[str]:
        """The names of what was listed there."""
        for name, source in known.items():
            if argument.remote is not None and source.base == argument.remote.base:
                yield name

    def _file(self, path: Path, base: Path) -> Iterator[CorpusFile | ReadingProblem]:
        whole = _absolute(path)
        name = self._names.name(whole, base)
        if self._seen.get(name) == whole:
            return
        if name in self._seen:
            raise Invalid(f"{self._seen[name]} and {path} would both be {name!r}: name a folder that holds both")
        self._seen[name] = whole
        try:
            found = path.stat()
        except OSError as error:
            yield ReadingProblem(str(path), f"it cannot be read ({error.strerror or error})")
            return
        above = as_text(whole).removesuffix(name).rstrip("/") or "/"
        yield CorpusFile(path, name, above, found.st_size, f"{found.st_size} {found.st_mtime_ns}")

    def _inside(self, argument: CorpusArgument, known: Mapping[str, SourceFile]) -> Iterator[str]:
        """The names of what was inside a folder, also before it moved here, or before it was kept where that was."""
        [root] = argument.roots
        if not root.is_dir():
            return
        folder = as_text(_absolute(root)).rstrip("/") + "/"
        label = below(_absolute(root), self._bases[root]) + "/"
        for name, source in known.items():
            was_here = source.base and f"{source.base.rstrip('/')}/{name}".startswith(folder)
            was_there = source.base and lexists(f"{source.base}/{label}")
            if was_here or (name.startswith(label) and not was_there):
                yield name

    def _fitting(self, argument: CorpusArgument, known: Mapping[str, SourceFile]) -> Iterator[str]:
        """The names of what fitted a pattern."""
        pattern, here = _absolute(Path(argument.given)).parts, Path.cwd()
        for name, source in known.items():
            if _fits(Path(source.base or here, name).parts, pattern):
                yield name


def _roots(given: str) -> Iterator[Path]:
    path = Path(given)
    if path.exists() or not has_magic(given):
        if not path.exists():
            raise Invalid(f"{given!r} is no file and no folder: name what is to be read")
        yield path
        return
    anchor = Path(path.anchor)
    matches = sorted(anchor.glob(str(path.relative_to(anchor))))
    if not matches:
        raise Invalid(f"no file fits {given!r}: name what is to be read")
    yield from matches


def _fits(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Does a path fit a pattern, or lie in a folder that does?"""
    if not pattern:
        return True
    if pattern[0] == "**":
        return any(_fits(parts[start:], pattern[1:]) for start in range(len(parts)))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _fits(parts[1:], pattern[1:])


def _usual_base(root: Path) -> Path:
    """A folder is named with itself; a file that was named itself, from the present folder if it is below that."""
    whole, here = _absolute(root), Path.cwd()
    return here if not root.is_dir() and whole.is_relative_to(here) else whole.parent


def _absolute(path: Path) -> Path:
    """The absolute path, without following links: what is linked in is named by where it is linked."""
    return Path(normpath(Path.cwd() / path))
