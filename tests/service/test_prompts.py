"""Prompts: the order of their parts, for templates with and without a system role and for models without a template."""

import pytest

from blend.tokens import Tokenizer
from service.prompts import Assembled, Titled, assemble
from tests.blend.tokenizers_made import fresh, made

PASSAGES = (Titled("It is in Tokyo.", "One"), Titled("It sleeps."))


def text(tokenizer: Tokenizer, parts: Assembled) -> str:
    pairs = zip(parts.passages, parts.gaps, strict=True)
    middle = [token for pair in pairs for each in pair for token in each]
    return tokenizer.decode([*parts.prefix, *middle, *parts.suffix])


@pytest.mark.parametrize("kind", ["bytes", "metaspace-first", "unigram"])
@pytest.mark.parametrize("template", ["its own", "none"])
def test_parts_stand_in_order_and_passages_are_their_own_tokens(kind: str, template: str) -> None:
    tokenizer = Tokenizer(fresh(kind, chat_template=None) if template == "none" else made(kind))
    parts = assemble(tokenizer, PASSAGES, question="Where?", system="Be short.")
    assert parts.passages == tuple(tuple(tokenizer.encode_text(each.text)) for each in PASSAGES)
    whole = text(tokenizer, parts)
    places = [whole.index(each) for each in ("Be short.", "It is in Tokyo.", "(One)", "It sleeps.", "Question: Where?")]
    assert places == sorted(places)
    assert parts.tokens == len(parts.prefix) + sum(map(len, parts.passages + parts.gaps)) + len(parts.suffix)


@pytest.mark.parametrize("kind", ["bytes", "metaspace-first"])
def test_nothing_stands_between_the_prefix_and_the_first_passage(kind: str) -> None:
    """The same prefix whatever is asked, so that the first passage's record is exact behind it."""
    tokenizer = Tokenizer(made(kind))
    prefixes = {assemble(tokenizer, PASSAGES[:count], question=f"{count}?").prefix for count in (1, 2)}
    assert len(prefixes) == 1


def test_the_gap_is_the_title_line_or_an_empty_one() -> None:
    assert Titled("x", "One").gap == "\n(One)\n\n" and Titled("x").gap == "\n\n"
