"""Documents on their way in: read from files, kept as bytes until they are cut, and named where nobody named them."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec
from blake3 import blake3

from retriever.chunking.count import Counter
from retriever.chunking.cut import CutRules, cut
from retriever.documents import Document, Draft
from retriever.readers.files import read, read_file
from retriever.readers.reading import Reading, ReadingProblem
from retriever.upload_types import NewUpload
from service.documents.corpus_listing import CorpusFile
from store.errors import StoreError

_DIGEST = 16  # bytes
_TOLD = 20  # problems of a file; it may have as many as lines


def encode_draft(draft: Draft) -> bytes:
    """The bytes that `decode_draft` reads."""
    return msgspec.json.encode(draft)


def decode_draft(content: bytes) -> Draft:
    """What `encode_draft` wrote."""
    return msgspec.json.decode(content, type=Draft)


def document_id(draft: Draft, collection: str) -> str:
    """The user's id, or a digest of all that was put in: the same content is the same document."""
    content = [collection, msgspec.to_builtins(draft)]
    return draft.id or f"doc-{blake3(msgspec.json.encode(content, order='sorted')).hexdigest(_DIGEST)}"


def upload_of(draft: Draft, collection: str) -> NewUpload:
    """The upload of a draft, which waits to be cut."""
    return NewUpload(document_id(draft, collection), collection, "", encode_draft(draft))


def cut_draft(draft: Draft, name: str, *, tokens: int, count: Counter) -> Document:
    """The document of a draft, with its own chunks, or cut to so many tokens each."""
    parts = draft.parts or cut(draft.text, CutRules(tokens), count=count, pages=draft.pages)
    return Document(name, parts, draft.title, draft.metadata)


def named(drafts: Sequence[Draft], file: str) -> list[Draft]:
    """The documents of a file: a file that is one document gives it its name, so that a newer one replaces it."""
    if len(drafts) == 1 and not drafts[0].id:
        return [replace(drafts[0], id=file)]
    return [*drafts]


def told(problems: Sequence[ReadingProblem]) -> str:
    """What could not be read, for people: the first problems, and how many there are besides."""
    more = [f"and {len(problems) - _TOLD:,} more"] if len(problems) > _TOLD else []
    return "; ".join([*(f"{each.place}: {each.reason}" for each in problems[:_TOLD]), *more])


def read_in(file: CorpusFile) -> Reading:
    """Reads a file. Its documents keep the ids that they bring; a lone one gets the file's name, others name#place."""
    reading = _read(file)
    drafts = [
        draft if draft.id else replace(draft, id=file.name if len(reading.drafts) == 1 else f"{file.name}#{place}")
        for place, draft in enumerate(reading.drafts)
    ]
    return Reading(tuple(drafts), reading.problems)


def _read(file: CorpusFile) -> Reading:
    """What the file becomes; what cannot be fetched is a problem of its own, and named by where it lies."""
    if file.fetch is not None:
        try:
            return read(file.name, file.fetch())
        except (OSError, StoreError) as error:
            return Reading(problems=(ReadingProblem(file.name, f"it cannot be fetched ({error}): try again"),))
    reading = read_file(file.path)
    if "://" not in file.name:
        return reading
    problems = tuple(ReadingProblem(file.name, each.reason) for each in reading.problems)
    titled = tuple(replace(each, title=file.name) if each.title == file.path.stem else each for each in reading.drafts)
    return Reading(titled, problems)
