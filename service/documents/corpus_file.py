"""A file of a corpus and what tells whether it changed. Reads what is in it when it is asked to."""

from dataclasses import dataclass, replace
from pathlib import Path

from retriever.documents import Draft
from retriever.readers.files import read_file
from retriever.readers.reading import ReadingProblem


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


@dataclass(frozen=True, slots=True)
class FileDocuments:
    """What a file became, documents with ids."""

    file: CorpusFile
    drafts: tuple[Draft, ...]
    problems: tuple[ReadingProblem, ...]


def read_in(file: CorpusFile) -> FileDocuments:
    """Reads a file. Its documents keep the ids that they bring; a lone one gets the file's name, others name#place."""
    reading = read_file(file.path)
    drafts = [
        draft if draft.id else replace(draft, id=file.name if len(reading.drafts) == 1 else f"{file.name}#{place}")
        for place, draft in enumerate(reading.drafts)
    ]
    return FileDocuments(file, tuple(drafts), reading.problems)
