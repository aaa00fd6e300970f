"""JSON documents, one per line or in a list: their keys, limits of size, depth and number. Each is judged alone."""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar, cast

import msgspec

from retriever.documents import DocumentPart, Draft, check_id
from retriever.errors import DocumentError, FilterError
from retriever.filter_condition import facets
from retriever.readers.decode import decode
from retriever.readers.reading import MAX_TITLE, Reading, ReadingProblem, UnreadableFile, megabytes, require_text

MAX_DOCUMENT_BYTES = 64 << 20  # of a line, or of a list: parsed as a whole, it takes a multiple of that
MAX_METADATA_BYTES = 1 << 20
MAX_DEPTH = 64  # of metadata, so that no recursion over it overflows the stack
MAX_DRAFTS = 1_000_000  # of a file, a chunk counting as much as a document
MAX_PROBLEMS = 10_000  # then the rest of the file is not tried

_KEYS = "a document has the keys id, title, text or chunks, metadata; a chunk has id, text, metadata"
_INK = re.compile(rb"\S")
_LONE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)

_T = TypeVar("_T")
_Metadata = dict[str, object]


class _Chunk(msgspec.Struct, forbid_unknown_fields=True):
    text: str
    id: str | int | None = None
    metadata: msgspec.Raw = msgspec.Raw(b"{}")


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    id: str | int | None = None
    title: str | None = None
    text: str | None = None
    chunks: list[str | _Chunk] | None = None
    metadata: msgspec.Raw = msgspec.Raw(b"{}")


_LINE = msgspec.json.Decoder(_Line)
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_METADATA = msgspec.json.Decoder(dict[str, object] | None)


def read_jsonl(name: str, content: bytes) -> Reading:
    """One draft per line that is not blank."""
    return _read(name, ((f"{name}:{number}", line) for number, line in _lines(_utf8(content))))


def read_json(name: str, content: bytes) -> Reading:
    """One draft, or one per item of a list."""
    content = _utf8(content).strip()
    if not content.startswith(b"["):
        return _read(name, iter([(name, content)]))
    _refuse_large(content, "the list", remedy="write one document per line into a .jsonl file")
    try:
        items = _parsed(_LIST.decode, content)
    except UnreadableFile as error:
        raise UnreadableFile(f"{error}; one document per line makes a .jsonl file") from None
    return _read(name, ((f"{name}[{number}]", memoryview(item).tobytes()) for number, item in enumerate(items)))


def _utf8(content: bytes) -> bytes:
    """The content without a byte order mark; each line's own bytes are checked with it."""
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        content = decode(content).encode("utf-8")
    return content.removeprefix(b"\xef\xbb\xbf")


def _lines(content: bytes) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, with their numbers, one at a time: a list of all would double a large file."""
    number, start = 1, 0
    while found := _INK.search(content, start):
        number += content.count(b"\n", start, found.start())
        end = content.find(b"\n", found.start())
        end = len(content) if end < 0 else end
        yield number, content[found.start() : end]
        start = end


def _read(name: str, items: Iterator[tuple[str, bytes]]) -> Reading:
    drafts: list[Draft] = []
    problems: list[ReadingProblem] = []
    held = 0
    for place, item in items:
        try:
            draft = _draft(item)
        except (UnreadableFile, DocumentError, FilterError) as error:
            problems.append(ReadingProblem(place, str(error)))
            if len(problems) < MAX_PROBLEMS:
                continue
            problems.append(
                ReadingProblem(name, f"{MAX_PROBLEMS:,} documents cannot be read, the rest was not tried: {_KEYS}")
            )
            break
        held += max(1, len(draft.parts))
        if held > MAX_DRAFTS:
            problems.append(ReadingProblem(place, f"a file has at most {MAX_DRAFTS:,} documents and chunks: split it"))
            break
        drafts.append(draft)
    if not drafts and not problems:
        problems.append(ReadingProblem(name, f"the file has no documents: leave it out, or fill it; {_KEYS}"))
    return Reading(tuple(drafts), tuple(problems))


def _draft(item: bytes) -> Draft:
    _refuse_large(item, "the document", remedy="split it, or hand it in as a text file")
    line = _parsed(_LINE.decode, item)
    if (line.text is None) == (line.chunks is None):
        raise UnreadableFile(f"it needs either text or chunks: {_KEYS}")
    metadata = _metadata(line.metadata)
    name, title = _label(line.id, "id"), _label(line.title, "title")[:MAX_TITLE]
    if name:
        check_id(name)
    if line.text is not None:
        return Draft(require_text(line.text, "its text"), id=name, title=title, metadata=metadata)
    if not line.chunks:
        raise UnreadableFile("its chunks are an empty list: leave the document out, or fill it")
    if len(line.chunks) > MAX_DRAFTS:
        raise UnreadableFile(f"it has {len(line.chunks):,} chunks, at most {MAX_DRAFTS:,}: split it")
    parts = tuple(_part(chunk, number) for number, chunk in enumerate(line.chunks))
    return Draft(parts=parts, id=name, title=title, metadata=metadata)


def _part(chunk: str | _Chunk, number: int) -> DocumentPart:
    what = f"chunk {number}"
    if isinstance(chunk, str):
        return DocumentPart(require_text(chunk, what))
    text = require_text(chunk.text, what)
    return DocumentPart(text, name=_label(chunk.id, f"the id of {what}"), metadata=_metadata(chunk.metadata))


def _label(label: str | int | None, what: str) -> str:
    if isinstance(label, int):
        return str(label)
    return require_text(label, what) if label else ""


def _metadata(raw: msgspec.Raw) -> _Metadata:
    data = memoryview(raw).tobytes()
    if len(data) > MAX_METADATA_BYTES:
        raise UnreadableFile(f"its metadata has {len(data):,} bytes, at most {MAX_METADATA_BYTES:,}: shorten it")
    metadata: _Metadata = _parsed(_METADATA.decode, data) or {}
    if _is_deep(metadata):
        raise UnreadableFile(f"its metadata is nested deeper than {MAX_DEPTH}: flatten it")
    for _ in facets(metadata):  # raises for what cannot be compared with
        pass
    return metadata


def _is_deep(metadata: _Metadata) -> bool:
    level: list[object] = [metadata]
    for _ in range(MAX_DEPTH):
        level = [inner for each in level for inner in _within(each)]
    return bool(level)


def _within(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return cast(_Metadata, value).values()
    return cast(list[object], value) if isinstance(value, list) else ()


def _parsed(parse: Callable[[bytes], _T], data: bytes) -> _T:
    try:
        return parse(data)
    except RecursionError:
        raise UnreadableFile(f"its JSON is nested too deep: metadata may be nested {MAX_DEPTH} deep") from None
    except msgspec.ValidationError as error:
        raise UnreadableFile(f"{error}: {_KEYS}") from None
    except UnicodeDecodeError as error:
        raise UnreadableFile(f"its JSON is not UTF-8 ({error.reason}): save it as UTF-8") from None
    except msgspec.DecodeError as error:
        half = _LONE.search(data)
        if half:
            reason = f"its JSON has half a surrogate pair ({half[0].decode()} at byte {half.start()})"
            raise UnreadableFile(f"{reason}: write the character itself, or both halves") from None
        raise UnreadableFile(f"it is not valid JSON ({error}): write the document with a JSON library") from None


def _refuse_large(data: bytes, what: str, *, remedy: str) -> None:
    if len(data) > MAX_DOCUMENT_BYTES:
        raise UnreadableFile(f"{what} has {megabytes(len(data))}, at most {megabytes(MAX_DOCUMENT_BYTES)}: {remedy}")
