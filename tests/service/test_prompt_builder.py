"""Prompts: the order of their parts, for templates with and without a system role and for models without a template."""

import pytest
from tokenizers import processors

from blend.errors import PromptError
from blend.text.tokenizer import Tokenizer
from service.model.prompt_builder import PromptBuilder, PromptPassage, PromptTokens, TurnPart, TurnParts, question_turns
from tests.blend.tokenizers_made import end_of, fresh, made, token_of

PASSAGES = (PromptPassage("It is in Tokyo.", "One"), PromptPassage("It sleeps."))
KINDS = ("bytes", "metaspace-first", "unigram")


def laid(
    tokenizer: Tokenizer, passages: tuple[PromptPassage, ...] = PASSAGES, *, question: str = "Where?"
) -> PromptTokens:
    return PromptBuilder(tokenizer).lay(question_turns(passages, question=question, system="Be short."))


def text(tokenizer: Tokenizer, laid: PromptTokens) -> str:
    return tokenizer.decode(laid.prompt({}).ids)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("template", ["its own", "none"])
def test_parts_stand_in_order_and_passages_are_their_own_tokens(kind: str, template: str) -> None:
    tokenizer = Tokenizer(fresh(kind, chat_template=None) if template == "none" else made(kind))
    found = laid(tokenizer)
    assert [run.passage for run in found.runs] == [0, None, 1]
    passages = [run.ids for run in found.runs if run.passage is not None]
    assert passages == [tuple(tokenizer.encode_text(each.text)) for each in PASSAGES]
    whole = text(tokenizer, found)
    places = [whole.index(each) for each in ("Be short.", "It is in Tokyo.", "(One)", "It sleeps.", "Question: Where?")]
    assert places == sorted(places)
    assert found.tokens == len(found.prompt({}).ids)


@pytest.mark.parametrize("kind", ["bytes", "metaspace-first"])
def test_nothing_stands_between_the_prefix_and_the_first_passage(kind: str) -> None:
    """The same prefix whatever is asked, so that the first passage's record is exact behind it."""
    tokenizer = Tokenizer(made(kind))
    found = [laid(tokenizer, PASSAGES[:count], question=f"{count}?") for count in (1, 2)]
    assert len({each.prefix for each in found}) == 1
    assert [each.runs[0].passage for each in found] == [0, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_passage_the_last_turns_own_text_is_in_the_suffix(kind: str) -> None:
    tokenizer = Tokenizer(made(kind))
    found = laid(tokenizer, ())
    assert found.runs == () and found.suffix
    assert "Be short." in tokenizer.decode(found.prefix) and "Where?" in tokenizer.decode(found.suffix)


@pytest.mark.parametrize("kind", KINDS)
def test_a_passage_may_stand_in_any_turn_and_an_empty_one_takes_no_place(kind: str) -> None:
    tokenizer = Tokenizer(made(kind))
    said = [
        TurnParts("user", (TurnPart("Hello. "), TurnPart("It sleeps.", 1), TurnPart("", 2))),
        TurnParts("assistant", (TurnPart("Indeed."),)),
        TurnParts("user", (TurnPart("It is in Tokyo.", 0), TurnPart(" Where?"))),
    ]
    found = PromptBuilder(tokenizer).lay(said)
    assert [run.passage for run in found.runs if run.passage is not None] == [1, 0]
    assert found.runs[0].passage == 1 and found.runs[-1].passage == 0
    whole = text(tokenizer, found)
    places = [whole.index(each) for each in ("Hello.", "It sleeps.", "Indeed.", "It is in Tokyo.", "Where?")]
    assert places == sorted(places)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("template", ["its own", "none"])
def test_the_question_is_the_last_user_turn_and_what_follows_it(kind: str, template: str) -> None:
    tokenizer = Tokenizer(fresh(kind, chat_template=None) if template == "none" else made(kind))
    said = [
        TurnParts("system", (TurnPart("It sleeps.", 0), TurnPart("Where?"))),
        TurnParts("user", (TurnPart("Where?"),)),
        TurnParts("assistant", (TurnPart("In Tokyo."),)),
        TurnParts("user", (TurnPart("Where?"), TurnPart(" And when?"))),
    ]
    found = PromptBuilder(tokenizer).lay(said).prompt({})
    asked = tokenizer.decode(found.suffix[-found.question :])
    assert asked.strip().startswith("Where? And when?") and "Tokyo" not in asked
    assert tokenizer.decode(found.suffix).endswith(asked) and len(found.suffix) > found.question
    inline = laid(tokenizer)
    assert inline.question == inline.tokens - len(inline.prefix)
    assert PromptBuilder(tokenizer).lay_plain(said[:1]).question == 0


def test_a_passage_with_no_tokens_behind_it_is_text() -> None:
    builder = PromptBuilder(Tokenizer(made("bytes")))
    words, one, two, empty = TurnPart("Look: "), TurnPart("It sleeps.", 0), TurnPart("In Tokyo.", 1), TurnPart("", 2)
    found = builder.lay_raw([TurnParts("user", (words, one, two, empty))])
    assert ([run.passage for run in found.runs], found.suffix) == ([0], builder.ids(two.text))
    alone = builder.lay_raw([TurnParts("user", (one, TurnPart("")))])
    assert (alone.prefix, alone.runs, alone.suffix) == ((), (), builder.ids(one.text))


@pytest.mark.parametrize("kind", KINDS)
def test_what_no_template_begins_begins_as_the_models_own_tokenizer_has_it(kind: str) -> None:
    source = fresh(kind, chat_template=None)
    end, text = end_of(kind), "Mira lives in"
    source.backend_tokenizer.post_processor = processors.TemplateProcessing(
        f"{end} $A {end}", special_tokens=[(end, token_of(kind, end))]
    )
    builder, own = PromptBuilder(Tokenizer(source)), tuple(source(text).input_ids[:-1])
    words, passage = TurnPart(text), TurnPart("It sleeps.", 0)
    alone = builder.lay_raw([TurnParts("user", (TurnPart(""), words))])
    assert (*alone.prefix, *alone.suffix) == own
    behind = builder.lay_raw([TurnParts("user", (words, passage, words))])
    assert (behind.prefix, behind.suffix) == (own, builder.ids(text))
    first = builder.lay_raw([TurnParts("user", (TurnPart(""), passage, words))])
    assert first.prefix == own[:1] and first.runs[0].ids == builder.ids(passage.text)
    assert first.suffix == builder.ids(text)
    chat = builder.lay([TurnParts("system", (words,)), TurnParts("user", (words,))])
    assert chat.prefix[: len(own)] == own and chat.suffix[: len(first.suffix)] == first.suffix
    source.chat_template = made(kind).chat_template
    rendered = PromptBuilder(Tokenizer(source)).lay([TurnParts("user", (words,))])
    assert rendered == PromptBuilder(Tokenizer(made(kind))).lay([TurnParts("user", (words,))])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unit", ["a", " ", "word ", "\n", "\U0001f642", "x1;"])
def test_a_text_that_cannot_fit_is_never_read_as_a_whole(kind: str, unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, window = Tokenizer(made(kind)), 500
    builder, read, encode = PromptBuilder(tokenizer), list[int](), tokenizer.encode_text

    def encoded(text: str) -> list[int]:
        read.append(len(text))
        return encode(text)

    monkeypatch.setattr(tokenizer, "encode_text", encoded)
    with pytest.raises(PromptError, match="3,000,000 characters, more tokens than the model's window of 500"):
        builder.check_length(["short", (unit * 3_000_000)[: 3_000_000 - 5]], window=window)
    assert max(read) <= 1 << 14 and sum(read) <= window << 14


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unit", ["a", " ", "word ", "\U0001f642", "anticonstitutionally "])
def test_what_fits_is_not_refused(kind: str, unit: str) -> None:
    tokenizer = Tokenizer(made(kind))
    for count in (1, 100, 20_000):
        tokens = len(tokenizer.encode_text(unit * count))
        PromptBuilder(tokenizer).check_length([unit * count], window=tokens)
