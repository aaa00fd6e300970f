"""The names of a corpus's files, which are their documents' ids. Asks which folders are there, and reads no file."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from retriever.types import SourceFile


class SourceNames:
    """Names the files of one run. A name is a path from a base: `docs/a.md` from `/home/me`, wherever that lies.

    What is known keeps its name where it is, and in a folder that has moved: it is gone from where it was, and one of
    its files is here, of the same size. Other folders of one name are told apart by the folders above them.
    """

    def __init__(self, known: Mapping[str, SourceFile]) -> None:
        self.moved: dict[str, Path] = {}  # bases from which something moved, and the first of it where it is now
        self._known = known
        self._names: dict[str, str] = {}  # of paths
        self._bases: dict[str, set[str]] = {}  # of folders, by how names begin; empty where an older run left it out
        self._homes: dict[str, str] = {}  # the base of each folder that a base holds
        for name, source in known.items():
            self._add(name, source.base)

    def base(self, root: Path, usual: Path) -> Path:
        """The folder from which the names of a file, or of all in a folder, are their paths; usually that one."""
        labels = {base: below(root, base) for base in (usual, *usual.parents)}
        known = [base for base, label in labels.items() if self._bases_of(label)]
        here = [base for base in known if as_text(base) in self._bases_of(labels[base])]
        free = [base for base in known if self._is_free(labels[base], base)]
        old = [base for base in free if "" in self._bases_of(labels[base])]
        homes = [Path(self._homes[each]) for each in map(as_text, (root, *root.parents)) if each in self._homes]
        unknown = [base for base in labels if base not in known]
        found = (here[-1:] or old[-1:] or homes[:1] or free[-1:] or unknown or [usual])[0]
        if found in free:
            self.moved = {old: root for old in self._bases_of(labels[found]) if old} | self.moved
        self._bases.setdefault(below(root, found), set()).add(as_text(found))
        return found

    def name(self, path: Path, base: Path) -> str:
        """The file's name, the one that it has or else the one from there, which it has from now on."""
        name = self._names.get(as_text(path)) or below(path, base)
        if name not in self._known:
            self._add(name, as_text(base))
        return name

    def _add(self, name: str, base: str) -> None:
        if base:
            self._names[_joined(base, name)] = name
            self._homes[_joined(base, name.partition("/")[0])] = base
        for folder in _folders(name):
            self._bases.setdefault(folder, set()).add(base)

    def _bases_of(self, name: str) -> set[str]:
        """Where a folder or a file of this name was."""
        found = self._bases.get(name, set())
        return found | {self._known[name].base} if name in self._known else found

    def _is_free(self, label: str, base: Path) -> bool:
        """Is what has this name gone from where it was, and here? What an older version kept may be here."""
        bases = self._bases_of(label)
        if any(old and os.path.lexists(_joined(old, label)) for old in bases):
            return False
        inside = f"{label}/"
        return "" in bases or any(
            _has_size(base / name, source.signature.partition(" ")[0])
            for name, source in self._known.items()
            if name == label or name.startswith(inside)
        )


def below(path: Path, base: Path) -> str:
    """The path from there, with slashes on every system."""
    return as_text(path.relative_to(base))


def as_text(path: Path) -> str:
    """A path as text in any case: what is none of it becomes a question mark."""
    return path.as_posix().encode("utf-8", "replace").decode()


def _has_size(path: Path, size: str) -> bool:
    try:
        return str(path.stat().st_size) == size
    except OSError:
        return False


def _joined(base: str, name: str) -> str:
    return f"{base.rstrip('/')}/{name}"


def _folders(name: str) -> Iterator[str]:
    at = name.find("/")
    while at >= 0:
        yield name[:at]
        at = name.find("/", at + 1)
