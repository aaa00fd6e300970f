"""Every file of the four packages with what its first lines say, as ARCHITECTURE.md ends in: `python -m tests.file_map`
writes it there.
"""

import ast
from collections.abc import Iterator
from pathlib import PurePosixPath

from tests.architecture import ROOT, load

PAGE = ROOT / "ARCHITECTURE.md"
HEADING = "## Every file\n"
MAPPED = ("blend", "store", "retriever", "service")


def file_map() -> str:
    """What stands below the heading."""
    folders: dict[PurePosixPath, dict[str, str]] = {}
    for source in load(ROOT):
        if source.path.parts[0] in MAPPED:
            folders.setdefault(source.path.parent, {})[source.path.name] = first_paragraph(source.tree)
    order = sorted(folders, key=lambda folder: (MAPPED.index(folder.parts[0]), folder))
    return "".join(
        f"\n{line}\n" if line.startswith("#") else f"{line}\n" for each in order for line in lines(each, folders[each])
    )


def lines(folder: PurePosixPath, files: dict[str, str]) -> Iterator[str]:
    yield f"### {folder}"
    yield f"\n{files['__init__.py']}\n"
    yield from (f"- `{name}` {text}" for name, text in files.items() if name != "__init__.py")


def first_paragraph(tree: ast.Module) -> str:
    return " ".join((ast.get_docstring(tree) or "").split("\n\n")[0].split())


def with_map(page: str) -> str:
    return page[: page.index(HEADING) + len(HEADING)] + file_map()


if __name__ == "__main__":
    PAGE.write_text(with_map(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
