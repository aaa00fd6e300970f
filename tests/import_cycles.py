"""Who imports whom, in a circle: files, and folders. Imports for types and deferred ones count: readers follow them."""

from collections.abc import Container, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import PurePosixPath

from tests.architecture import PRODUCT, Source, within


def file_cycle(sources: tuple[Source, ...]) -> list[str]:
    """Modules that import each other, at any time; empty where there are none. An import executes packages, too."""
    graph: dict[str, set[str]] = {source.module: set() for source in sources}
    for source in sources:
        for found in source.imports():
            executed = graph.keys() & set(_around(found.target))
            graph[source.module] |= {each for each in executed if not within(source.module, (each,))}
    return _cycle(graph)


def folder_cycle(sources: tuple[Source, ...]) -> list[str]:
    """Folders of the product that import each other. A file that lies beside folders stands for itself."""
    product = [source for source in sources if within(source.module, PRODUCT)]
    places = {source.module: room for source, room in rooms(product).items()}
    graph: dict[str, set[str]] = {place: set() for place in places.values()}
    for source in product:
        for found in source.imports():
            here = places[source.module]
            there = next((places[each] for each in _around(found.target) if each in places), here)
            if there != here:
                graph[here].add(there)
    return _cycle(graph)


def rooms(sources: Sequence[Source]) -> dict[Source, str]:
    """The folder of each file, or the file itself where it lies beside folders."""
    above = {folder for source in sources for folder in source.path.parent.parents}
    return {source: _room(source.path, above) for source in sources}


def _room(path: PurePosixPath, above: Container[PurePosixPath]) -> str:
    """`above` are the folders that hold others."""
    return str(path if path.parent in above and path.name != "__init__.py" else path.parent)


def _around(target: str) -> Iterator[str]:
    """The name, and those of the packages around it, the longest first."""
    parts = target.split(".")
    yield from (".".join(parts[:length]) for length in range(len(parts), 0, -1))


def _cycle(graph: Mapping[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []
