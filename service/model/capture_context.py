"""The context that a chunk is captured behind: a filler, the end of the chunk before it, cut to the window.

A chunk that is computed alone has keys that are too loud among others in a prompt. Behind passages of the same kind,
and what stands before it in its document, they are as loud as they should be. Knows texts and token ids, no catalog.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from retriever.documents import chunk_id
from service.model.prompt_builder import Ids, PromptBuilder, PromptPassage
from store.fingerprint import context_digest, digest_of

PASSAGES = 4  # that are enough for a filler, if they are long enough
FILLER_CHARACTERS = 1200  # some 300 tokens
EXCERPT_CHARACTERS = 400  # of a filler's passage: what more it has is not looked at
EXCERPT_TOKENS = 72
# Tokens before a chunk of so many tokens or more: what it costs is its share of the chunk's own.
STEPS = ((160, 96), (96, 64), (0, 48))
BEFORE_CHARACTERS = 800  # of the passage before: more than the most tokens hold
OVERLAP_CHARACTERS = 2000  # within which it is looked whether a chunk begins with the end of the one before


@dataclass(frozen=True, slots=True)
class CaptureContext:
    """Passages of the same kind, and the one before the chunk in its document."""

    filler: tuple[PromptPassage, ...] = ()
    before: PromptPassage | None = None

    @property
    def digest(self) -> str:
        """A digest of all texts in it, and of there being none."""
        place = (chunk_id(self.before.text), self.before.title) if self.before else None
        return context_digest(filler_digest(self.filler), place)

    @property
    def narrowed(self) -> Iterator["CaptureContext"]:
        """Yields the context, and then ever less of it, down to none."""
        yield self
        if self.filler and self.before:
            yield replace(self, filler=())
        if self.filler or self.before:
            yield ALONE


ALONE = CaptureContext()


def filler_digest(filler: Sequence[PromptPassage]) -> str:
    """A digest of a filler's texts; empty where there are none."""
    return digest_of([[each.text, each.title] for each in filler]) if filler else ""


@dataclass(frozen=True, slots=True)
class ChunkIds:
    """A chunk's token ids, and those of the `tail` that stands behind it in a prompt: its title.

    Both are captured behind `shared`, which other chunks are behind as well, and what is right `before` this one.
    """

    ids: Ids
    tail: Ids = ()
    shared: Ids = ()
    before: Ids = ()

    @property
    def all(self) -> Ids:
        """The ids that a record covers."""
        return self.ids + self.tail

    @property
    def tokens(self) -> int:
        """How many tokens there are with all that is before."""
        return len(self.shared) + len(self.before) + len(self.ids) + len(self.tail)


def in_context(
    builder: PromptBuilder, passage: PromptPassage, *, context: CaptureContext, prefix: Ids, window: int
) -> ChunkIds:
    """The passage's ids in as much of the context as the window holds beside them, and with its tail if that fits."""
    whole = ChunkIds(builder.ids(passage.text), builder.gap_ids(passage), prefix)
    found = whole
    for each in context.narrowed:
        before = _before(builder, each.before, passage=passage, tokens=len(whole.all)) if each.before else ()
        found = replace(whole, shared=prefix + filler_ids(builder, each.filler), before=before)
        if found.tokens <= window:
            return found
    return replace(found, tail=())


def filler_ids(builder: PromptBuilder, filler: Sequence[PromptPassage]) -> Ids:
    """The filler as a prompt renders passages."""
    excerpts = ((builder.ids(each.text)[:EXCERPT_TOKENS], builder.gap_ids(each)) for each in filler)
    return tuple(chain.from_iterable(chain.from_iterable(excerpts)))


def excerpt(text: str) -> str:
    """The part of a passage's text that a filler holds."""
    return text.strip()[:EXCERPT_CHARACTERS].strip()


def _before(builder: PromptBuilder, before: PromptPassage, *, passage: PromptPassage, tokens: int) -> Ids:
    """The end of the passage before, without what the chunk repeats of it, and the gap that follows it."""
    gap = builder.gap_ids(before)
    room = next(step for least, step in STEPS if tokens >= least) - len(gap)
    text = _not_repeated(before.text.strip(), passage.text)[-BEFORE_CHARACTERS:].strip()
    return builder.ids(text)[-room:] + gap if room > 0 and text else ()


def _not_repeated(before: str, text: str) -> str:
    """The text before, without its end where the next text begins with that."""
    head = text[:1]
    at = before.find(head, max(0, len(before) - OVERLAP_CHARACTERS)) if head else -1
    while at >= 0:
        if text.startswith(before[at:]):
            return before[:at]
        at = before.find(head, at + 1)
    return before
