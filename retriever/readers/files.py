"""The entry point: which reader a suffix has, what is skipped in folders, what is too large. Raises nothing."""

import stat
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path, PurePath

from retriever.documents import Draft
from retriever.readers.decode import decode
from retriever.readers.html import read_html
from retriever.readers.jsonl import read_json, read_jsonl
from retriever.readers.markdown import read_markdown, read_mdx
from retriever.readers.parsed import read_pages, read_parsed, read_text
from retriever.readers.pdf import read_pdf
from retriever.readers.reading import MAX_BYTES, Reading, ReadingProblem, UnreadableFile, megabytes, require_text
from retriever.readers.source import LANGUAGES, read_source


def _read_plain(name: str, content: bytes) -> Reading:
    """One draft, the file verbatim, titled as it is."""
    return Reading((Draft(require_text(decode(content)), title=PurePath(name).stem),))


_READERS: dict[str, Callable[[str, bytes], Reading]] = {
    **dict.fromkeys([".txt", ".text", ".log"], _read_plain),
    **dict.fromkeys([".md", ".markdown"], read_markdown),
    ".mdx": read_mdx,
    ".rst": partial(read_text, parser="parse_rst"),
    **dict.fromkeys([".html", ".htm"], read_html),
    ".pdf": read_pdf,
    ".docx": partial(read_parsed, parser="parse_docx"),
    ".pptx": partial(read_pages, parser="parse_pptx"),
    ".xlsx": partial(read_parsed, parser="parse_xlsx"),
    **dict.fromkeys([".csv", ".tsv"], partial(read_text, parser="parse_csv")),
    ".ipynb": partial(read_parsed, parser="parse_ipynb"),
    ".eml": partial(read_parsed, parser="parse_eml"),
    ".epub": partial(read_parsed, parser="parse_epub"),
    **dict.fromkeys([".jsonl", ".ndjson"], read_jsonl),
    ".json": read_json,
    **dict.fromkeys(LANGUAGES, read_source),
}
SUFFIXES = tuple(_READERS)
_MADE = {"__pycache__", "_static", "node_modules", "searchindex.js"}  # what tools put beside documents


def read(name: str, content: bytes) -> Reading:
    """What the content of a file becomes. Its name's suffix, in any case, tells the format."""
    name = _printable(name)
    suffix = PurePath(name).suffix.lower()
    reader = _READERS.get(suffix)
    if reader is None:
        return _refused(name, f"the suffix {suffix!r} is unknown: give the file one of {', '.join(SUFFIXES)}")
    if len(content) > MAX_BYTES:
        return _refused(name, _too_large(len(content)))
    try:
        return reader(name, content)
    except UnreadableFile as error:
        return _refused(name, str(error))


def read_file(path: Path) -> Reading:
    """What a file becomes. One that cannot be opened, or is no regular file, is a problem too."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            return _refused(str(path), "it is no regular file: name a file or a folder of files")
        if found.st_size > MAX_BYTES:
            return _refused(str(path), _too_large(found.st_size))
        content = path.read_bytes()
    except OSError as error:
        return _refused(str(path), f"it cannot be read ({error.strerror or error}): check that it is there and allowed")
    except ValueError as error:  # a NUL in the name
        return _refused(str(path), f"its name is none that a file can have ({error}): rename it")
    return read(str(path), content)


def read_all(
    paths: Iterable[Path], on_skipped: Callable[[Path], None] = lambda path: None
) -> Iterator[tuple[Path, Reading]]:
    """Reads every file that `walk` finds; folders that it cannot read become problems."""
    for path, refusal in walk(paths, on_skipped):
        yield path, refusal or read_file(path)


def walk(
    paths: Iterable[Path], on_skipped: Callable[[Path], None] = lambda path: None
) -> Iterator[tuple[Path, Reading | None]]:
    """Yields every file, and those of a known format in and below folders, in order, but for what `why_skipped` tells.

    Links are followed, but no folder is walked twice. One that cannot be read comes with what is wrong.
    """
    walked: set[tuple[int, int]] = set()
    for path in paths:
        yield from _walk_below(path, walked, on_skipped=on_skipped) if path.is_dir() else [(path, None)]


def _walk_below(
    folder: Path, walked: set[tuple[int, int]], *, on_skipped: Callable[[Path], None]
) -> Iterator[tuple[Path, Reading | None]]:
    waiting = [folder]
    while waiting:
        path = waiting.pop()
        if not path.is_dir():
            yield path, None
            continue
        try:
            found = path.stat()
            if (found.st_dev, found.st_ino) not in walked:
                walked.add((found.st_dev, found.st_ino))
                wanted: list[Path] = []
                for each in sorted(path.iterdir()):
                    on_skipped(each) if why_skipped(each) else wanted.append(each)
                waiting.extend(reversed(wanted))
        except OSError as error:
            reason = f"the folder cannot be read ({error.strerror or error}): check that it is allowed"
            yield path, _refused(str(path), reason)


def why_skipped(path: Path) -> str:
    """Why a file or folder is left out of the folder that it is in; nothing where it is not."""
    is_known = path.suffix.lower() in SUFFIXES or path.is_dir()
    return why_aside(path.name) or ("" if is_known else f"the suffix {path.suffix!r} is unknown")


def why_aside(name: str) -> str:
    """Why whatever has that name is left out of folders; nothing where it is not."""
    if name.startswith("."):
        return "hidden"
    return "written by a program" if name in _MADE or name.endswith(".min.js") else ""


def _too_large(size: int) -> str:
    return f"it has {megabytes(size)}, at most {megabytes(MAX_BYTES)}: split it"


def _refused(place: str, reason: str) -> Reading:
    return Reading(problems=(ReadingProblem(_printable(place), reason),))


def _printable(name: str) -> str:
    """A file's name as text: bytes that are no text become question marks."""
    return name.encode("utf-8", "replace").decode("utf-8")
