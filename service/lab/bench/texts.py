"""Chunks to measure with: of the made-up world, or of the user's files, cut as every corpus is. Computes nothing."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count

from blend.errors import TokenizerError
from retriever.documents import Document, Draft
from retriever.errors import DocumentError
from retriever.readers.reading import ReadingProblem
from service.documents.corpus_listing import CorpusFile, CorpusListing
from service.documents.drafts import cut_draft, read_in
from service.errors import Invalid
from service.lab.questions.suites import multihop
from service.model.prompt_builder import PromptPassage
from service.model.served_model import ServedModel

CASE_TOKENS = 8  # of a chunk's tokens so many ask for a case: a document then has several chunks


@dataclass(frozen=True, slots=True)
class Texts:
    """Different chunks, as they stand in a prompt. `problems`: what could not be read on the way to them."""

    chunks: tuple[PromptPassage, ...]
    problems: tuple[ReadingProblem, ...]


def made_up(tokens: int) -> Iterator[Draft]:
    """Documents without end, each of several chunks of so many tokens."""
    for seed in count():
        cases = multihop(seed=seed, size=max(1, tokens // CASE_TOKENS))
        yield Draft("\n\n".join(each.text for case in cases for each in case.passages), title=f"Register {seed}")


def of_files(listing: CorpusListing) -> Iterator[Draft | ReadingProblem]:
    """The documents of the files that are listed, in order."""
    for found in listing.walk():
        if isinstance(found, CorpusFile):
            read = read_in(found)
            yield from (*read.problems, *read.drafts)
        else:
            yield found


def chunks_of(drafts: Iterable[Draft | ReadingProblem], model: ServedModel, *, most: int, tokens: int) -> Texts:
    """The first chunks that the model's tokenizer can say: at most so many, and no more than fill its window."""
    chunks: dict[str, PromptPassage] = {}
    found = 0
    problems: list[ReadingProblem] = []
    for draft in drafts:
        cut = draft if isinstance(draft, ReadingProblem) else _cut(draft, model, tokens=tokens)
        if isinstance(cut, ReadingProblem):
            problems.append(cut)
            continue
        for text in (part.text.strip() for part in cut.parts):
            ids = model.ids(text)
            if ids and text not in chunks:
                chunks[text] = PromptPassage(text, cut.title)
                found += len(ids)
        if len(chunks) >= most or found >= model.window:
            break
    if not chunks:
        reason = f" ({problems[0].place}: {problems[0].reason})" if problems else ""
        raise Invalid(f"there is no text that this model's tokenizer can say{reason}: name other files with --corpus")
    return Texts(tuple(chunks.values())[:most], tuple(problems))


def _cut(draft: Draft, model: ServedModel, *, tokens: int) -> Document | ReadingProblem:
    try:
        return cut_draft(draft, draft.id, tokens=tokens, count=model.counted)
    except (DocumentError, TokenizerError) as error:
        return ReadingProblem(draft.id or draft.title, str(error))
