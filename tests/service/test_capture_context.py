"""What a chunk is captured behind: the ids of it, how it shrinks, and how it is named."""

import pytest

from blend.text.tokenizer import Tokenizer
from retriever.documents import chunk_id
from service.model.capture_context import (
    ALONE,
    EXCERPT_TOKENS,
    STEPS,
    CaptureContext,
    context_digest,
    filler_digest,
    in_context,
)
from service.model.prompt_builder import PromptBuilder, PromptPassage
from store.fingerprint import is_alone
from tests.blend.tokenizers_made import LOSSLESS, made

PREFIX = (5, 6, 7)
ROOMY = 1 << 20
FILLER = tuple(
    PromptPassage(f"Passage {number} tells of wells and of bridges.", f"Book {number}") for number in range(4)
)
BEFORE = PromptPassage("The harbour was built in spring. " * 20, "Harbour")
OWN = PromptPassage("It was closed again in the autumn of that year.", "Harbour")


@pytest.fixture(params=LOSSLESS, scope="module")
def builder(request: pytest.FixtureRequest) -> PromptBuilder:
    return PromptBuilder(Tokenizer(made(request.param)))


def test_a_chunk_stands_behind_passages_and_the_end_of_the_one_before_as_prompts_render_them(
    builder: PromptBuilder,
) -> None:
    found = in_context(builder, OWN, context=CaptureContext(FILLER, BEFORE), prefix=PREFIX, window=ROOMY)

    rendered = [builder.ids(each.text)[:EXCERPT_TOKENS] + builder.gap_ids(each) for each in FILLER]
    assert found.shared == PREFIX + tuple(token for each in rendered for token in each)
    assert found.ids == builder.ids(OWN.text) and found.tail == builder.gap_ids(OWN)
    gap, room = builder.gap_ids(BEFORE), next(room for least, room in STEPS if len(found.all) >= least)
    assert found.before == builder.ids(BEFORE.text.strip())[-(room - len(gap)) :] + gap
    assert len(found.before) == room


def test_what_a_chunk_repeats_is_not_before_it(builder: PromptBuilder) -> None:
    before, own = PromptPassage("One two three. Four five six."), PromptPassage("Four five six. Seven eight.")
    found = in_context(builder, own, context=CaptureContext((), before), prefix=PREFIX, window=ROOMY)
    assert found.before == builder.ids("One two three.") + builder.gap_ids(before)
    wholly = in_context(
        builder, own, context=CaptureContext((), PromptPassage("Four five six.")), prefix=PREFIX, window=ROOMY
    )
    assert wholly.before == ()


def test_a_context_shrinks_before_a_chunk_is_refused(builder: PromptBuilder) -> None:
    whole = in_context(builder, OWN, context=CaptureContext(FILLER, BEFORE), prefix=PREFIX, window=ROOMY)

    def within(window: int) -> tuple[bool, bool, bool]:
        found = in_context(builder, OWN, context=CaptureContext(FILLER, BEFORE), prefix=PREFIX, window=window)
        assert found.ids == whole.ids
        return found.shared == whole.shared, found.before == whole.before, found.tail == whole.tail

    assert within(whole.tokens) == (True, True, True)
    assert within(whole.tokens - 1) == (False, True, True)
    left = len(PREFIX) + len(whole.before) + len(whole.all)
    assert within(left) == (False, True, True)
    assert within(left - 1) == (False, False, True)
    assert within(len(PREFIX) + len(whole.all) - 1) == (False, False, False)


def test_a_digest_names_every_text_and_nothing_else() -> None:
    contexts = [
        ALONE,
        CaptureContext(FILLER),
        CaptureContext(FILLER[:3]),
        CaptureContext(FILLER[::-1]),
        CaptureContext((), BEFORE),
        CaptureContext((), PromptPassage(BEFORE.text, "Another")),
        CaptureContext((), PromptPassage(BEFORE.text + ".", BEFORE.title)),
        CaptureContext(FILLER, BEFORE),
    ]
    assert len({each.digest for each in contexts}) == len(contexts)
    assert is_alone(ALONE.digest) and is_alone("") and not any(is_alone(each.digest) for each in contexts[1:])
    named = context_digest(filler_digest(FILLER), (chunk_id(BEFORE.text), BEFORE.title))
    assert named == CaptureContext(FILLER, BEFORE).digest
