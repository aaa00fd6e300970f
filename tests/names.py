"""The rules of names: public classes are unique, files are named after what they define, docstrings have a subject."""

import ast
import re
from collections.abc import Iterator

from tests.architecture import PRODUCT, Finding, Source, within

SERVER = ("store", "retriever", "blend", "service")

# Words of a file's name that say what kind of thing it holds, where no definition says it.
KINDS = frozenset({"bodies", "cli", "errors", "fields", "options", "routes", "rows", "schema", "types"})

# fmt: off
PREPOSITIONS = frozenset((
    "about", "above", "across", "after", "against", "along", "amid", "among", "around", "as", "at", "before",
    "behind", "below", "beneath", "beside", "besides", "between", "beyond", "by", "despite", "down", "during",
    "except", "for", "from", "in", "inside", "into", "like", "near", "of", "off", "on", "onto", "out", "outside",
    "over", "past", "per", "since", "through", "throughout", "to", "toward", "towards", "under", "underneath",
    "until", "up", "upon", "via", "with", "within", "without",
))
# fmt: on

_DEFINING = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_SAME = 4  # letters at the beginning make words of one family: Evictor, eviction


def shared_class_names(sources: tuple[Source, ...]) -> dict[tuple[str, str], list[str]]:
    """Public classes that stand twice in the server, or in one client: the distribution and the name, and the files."""
    found: dict[tuple[str, str], list[str]] = {}
    for source in sources:
        for node in source.tree.body if within(source.module, PRODUCT) else ():
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault((_distribution(source), node.name), []).append(str(source.path))
    return {name: files for name, files in found.items() if len(files) > 1}


def misnamed_files(source: Source) -> Iterator[Finding]:
    """In the server; the files of the clients are named as their frameworks' are."""
    if not within(source.module, SERVER) or source.path.name.startswith("__"):
        return
    defined = {word for name in (*source.path.parts[:-1], *_public(source)) for word in _words(name)}
    for word in _words(source.path.stem):
        if word not in KINDS and not any(_are_of_one_family(word, other) for other in defined):
            yield 1, f"is named after {word!r}, and defines nothing of that name"


def prepositions_first(source: Source) -> Iterator[Finding]:
    for node in source.nodes():
        if isinstance(node, (ast.Module, *_DEFINING)) and (said := ast.get_docstring(node)):
            first = re.split(r"\W", said, maxsplit=1)[0]
            if first.lower() in PREPOSITIONS:
                yield getattr(node, "lineno", 1), f"a docstring begins with {first!r}: give it a subject"


def _are_of_one_family(word: str, other: str) -> bool:
    """Tells `keys` and `key`, `eviction` and `Evictor` from words that only begin alike."""
    return word[:_SAME] == other[:_SAME] or (min(len(word), len(other)) >= 3 and word.rstrip("s") == other.rstrip("s"))


def _distribution(source: Source) -> str:
    return source.path.parts[1] if source.path.parts[0] == "clients" else "server"


def _public(source: Source) -> Iterator[str]:
    for node in source.tree.body:
        if isinstance(node, _DEFINING):
            names = [node.name]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [each.id for each in targets if isinstance(each, ast.Name)]
        else:
            names = []
        yield from (name for name in names if not name.startswith("_"))


def _words(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)]
