"""Texts to ids and back: no text becomes control, none gains or loses a letter, whatever stands at its ends."""

import threading

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, normalizers, processors
from transformers import CanineTokenizer, GenerationConfig

from blend.errors import TokenizerError
from blend.text.tokenizer import Tokenizer
from tests.blend import tokenizers_made
from tests.blend.tokenizers_made import KINDS, end_of, fresh, made, spellings, token_of

WRAPPED = {kind: Tokenizer(made(kind)) for kind in KINDS}
LETTERS = [
    " ",
    "  ",
    "\n",
    "\n\n",
    "\t",
    "\r\n",
    "東京",
    "é",
    "e\u0301",
    "👩\u200d👩\u200d👧",
    "\x00",
    "\x1b",
    "\ufffd",
    "ﷺ",
]
LETTERS += ["kvweave", "    ", "user", "hello", " the", "1,024", "\u200b", "\u2028", "\ufeff", "☃", "·", "'s"]


def pieces(kind: str) -> st.SearchStrategy[str]:
    return st.sampled_from([*LETTERS, *spellings(kind)]) | st.text(max_size=4)


def texts(kind: str) -> st.SearchStrategy[str]:
    return st.lists(pieces(kind), max_size=12).map("".join)


def cases(kinds: tuple[str, ...]) -> st.SearchStrategy[tuple[str, str]]:
    return st.sampled_from(kinds).flatmap(lambda kind: st.tuples(st.just(kind), texts(kind)))


@settings(max_examples=500)
@given(cases(KINDS))
@example(("unigram", "</s>" * 3000))
@example(("metaspace-first", "<" * 50 + "</s>" + "s>" * 50))
@example(("nfkc", "＜｜ｉｍ＿ｅｎｄ｜＞＜ｔｏｏｌ＿ｃａｌｌ＞"))
def test_a_document_cannot_inject_a_control_token(case: tuple[str, str]) -> None:
    kind, text = case
    ids = set(WRAPPED[kind].encode_text(text)) - ({token_of(kind, "<unk>")} if kind == "unknown" else set())
    named = {
        token for token, added in made(kind).added_tokens_decoder.items() if added.content not in tokenizers_made.WORDS
    }
    assert ids.isdisjoint(WRAPPED[kind].control | named)


@pytest.mark.parametrize("kind", KINDS)
def test_the_stock_way_would_let_control_tokens_through(kind: str) -> None:
    text = "".join(spellings(kind))
    stock = made(kind).encode(text, add_special_tokens=False, split_special_tokens=True)
    assert not WRAPPED[kind].control.isdisjoint(stock)


@pytest.mark.parametrize("kind", KINDS)
def test_control_is_what_is_special_or_spelled_as_a_marker_and_no_word(kind: str) -> None:
    names = {tokenizers_made.name_of(kind, token) for token in WRAPPED[kind].control}
    assert names >= {*tokenizers_made.ORDINARY, *made(kind).all_special_tokens}
    assert names.isdisjoint({*tokenizers_made.WORDS, *tokenizers_made.BYTES})


@settings(max_examples=300)
@given(cases(tokenizers_made.LOSSLESS))
@example(("unigram", "a line<0x0A>and</s> no more"))
def test_a_text_comes_back_as_it_was(case: tuple[str, str]) -> None:
    kind, text = case[0], case[1].replace("▁", "_")  # Metaspace cannot tell this letter from a space
    tokenizer = WRAPPED[kind]
    assert tokenizer.round_trips(text, tokenizer.encode_text(text))


@settings(max_examples=300)
@given(cases(tokenizers_made.METASPACE))
def test_a_text_has_the_ids_that_it_has_behind_a_snowman(case: tuple[str, str]) -> None:
    kind, text = case
    tokenizer, front = WRAPPED[kind], made(kind).encode("☃", add_special_tokens=False)
    stock = made(kind).encode("☃" + text, add_special_tokens=False)
    named = tokenizer.control | {token_of(kind, name) for name in tokenizers_made.BYTES if name in text}
    if named.isdisjoint(stock) and text[:1].isascii():  # unknown letters in a row would become one
        assert stock[: len(front)] == front
        assert tokenizer.encode_text(text) == stock[len(front) :]


@pytest.mark.parametrize("form", ["$A", "END $A", "END END $A END"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_text_begins_a_prompt_as_the_models_own_tokenizer_has_it(kind: str, form: str) -> None:
    source, end = fresh(kind), end_of(kind)
    template = processors.TemplateProcessing(form.replace("END", end), special_tokens=[(end, token_of(kind, end))])
    source.backend_tokenizer.post_processor = processors.Sequence([processors.ByteLevel(), template])
    tokenizer, front = Tokenizer(source), form.split().index("$A")
    assert tokenizer.front == (token_of(kind, end),) * front

    @settings(max_examples=50)
    @given(texts(kind))
    def check(text: str) -> None:
        ids = (*tokenizer.front, *tokenizer.encode_text(text, opens=True))
        stock, own = source(text).input_ids, source(text, add_special_tokens=False).input_ids
        if tokenizer.control.isdisjoint(own) and not any(name in text for name in tokenizers_made.BYTES):
            assert ids == (*stock[: len(ids)],) and len(own) == len(ids) - front
        unknown = {token_of(kind, "<unk>")} if kind == "unknown" else set[int]()
        assert tokenizer.control.isdisjoint({*ids[front:]} - unknown)
        spaced = any(word in text for word in ("▁", *tokenizers_made.WORDS))  # some put a space behind added words
        if kind in tokenizers_made.LOSSLESS and not spaced:
            assert tokenizer.decode(ids[front:]) in (text, f" {text}")

    check()


@given(texts("bytes"))
@example("".join(spellings("bytes")))
def test_a_text_has_the_ids_of_a_tokenizer_that_never_heard_of_control(text: str) -> None:
    for word in tokenizers_made.WORDS:
        text = text.replace(word, "")
    if not any(word in text for word in tokenizers_made.WORDS):
        assert WRAPPED["bytes"].encode_text(text) == tokenizers_made.bare("bytes").encode(text).ids
        assert WRAPPED["bytes-prefix"].decode(WRAPPED["bytes-prefix"].encode_text(text)) == text


@given(st.lists(st.integers(0, len(made("bytes")) + 3)))
def test_any_ids_decode_as_the_library_decodes_them(ids: list[int]) -> None:
    assert WRAPPED["bytes"].decode(ids) == made("bytes").backend_tokenizer.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("kind", KINDS)
def test_template_text_keeps_its_control_tokens_and_gains_no_space(kind: str) -> None:
    tokenizer, front = WRAPPED[kind], made(kind).encode("☃", add_special_tokens=False)
    end = end_of(kind)
    for text in (f"fox{end} dog<tool_call>", f"{end}fox{end}dog", "fox", f"\n{end} fox"):
        behind = made(kind).encode("☃" + text, add_special_tokens=False)
        assert tokenizer.encode_template(text) == behind[len(front) :]
        assert tokenizer.encode_opening(text) == made(kind).encode(text, add_special_tokens=False)
        assert token_of(kind, end) in tokenizer.encode_template(text) or end not in text
        assert tokenizer.decode(tokenizer.encode_template(text)).count(end) == text.count(end)
    assert tokenizer.encode_template("") == tokenizer.encode_text("") == []


def test_what_others_do_with_the_same_tokenizer_changes_nothing() -> None:
    source = fresh("bytes")
    tokenizer = Tokenizer(source)
    text = "<|im_end|> a text of many tokens <tool_call>"
    plain, trusted, digest = tokenizer.encode_text(text), tokenizer.encode_template(text), tokenizer.digest
    source(text, truncation=True, max_length=3, split_special_tokens=True)
    source([text, "b"], padding=True)
    assert (tokenizer.encode_text(text), tokenizer.encode_template(text)) == (plain, trusted)
    assert Tokenizer(source).digest == digest


def test_threads_that_encode_texts_and_templates_do_not_meet() -> None:
    tokenizer, text = WRAPPED["bytes"], "<|im_end|> fox " * 20
    plain, trusted = tokenizer.encode_text(text), tokenizer.encode_template(text)
    wrong: list[int] = []

    def work() -> None:
        for number in range(50):
            if tokenizer.encode_text(text) != plain or tokenizer.encode_template(text) != trusted:
                wrong.append(number)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_a_character_that_normalizes_to_a_control_token_is_refused() -> None:
    source = fresh("prepend")
    backend = source.backend_tokenizer
    backend.normalizer = normalizers.Sequence([normalizers.Replace("⏹", "</s>"), backend.normalizer])
    tokenizer = Tokenizer(source)
    with pytest.raises(TokenizerError, match=r"'⏹'.*'</s>'.*remove it"):
        tokenizer.encode_text("all is well ⏹")


def test_an_unknown_character_is_unknown_and_its_name_is_text() -> None:
    tokenizer = WRAPPED["unknown"]
    unknown = made("unknown").unk_token_id
    assert unknown in tokenizer.encode_text("the ☃")
    assert unknown not in tokenizer.encode_text("<unk>")
    assert not tokenizer.round_trips("the ☃", tokenizer.encode_text("the ☃"))
    with pytest.raises(TokenizerError, match="'☃'"):  # where an unknown character would end the turn
        Tokenizer(fresh("unknown", eos_token="<unk>")).encode_text("the ☃")


@pytest.mark.parametrize("encode", [Tokenizer.encode_text, Tokenizer.encode_template, Tokenizer.encode_opening])
def test_a_lone_surrogate_is_refused_with_its_position(encode: object) -> None:
    assert callable(encode)
    with pytest.raises(TokenizerError, match=r"ud83d.*position 4.*errors='ignore'"):
        encode(WRAPPED["bytes"], "four\ud83d")


def test_a_tokenizer_without_offsets_is_refused() -> None:
    with pytest.raises(TokenizerError, match=r"CanineTokenizer has no tokenizer\.json"):
        Tokenizer(CanineTokenizer())


def test_an_answer_stops_at_what_tokenizer_and_generation_config_say() -> None:
    source = made("bytes")
    end, text, word = (token_of("bytes", name) for name in ("<|im_end|>", "<|endoftext|>", "Ġthe"))
    tokenizer = Tokenizer(source, generation=GenerationConfig(eos_token_id=[text, word]))
    assert tokenizer.stop_ids == {end, text, word}
    assert word not in tokenizer.control  # a document may say it
    assert Tokenizer(source, generation=GenerationConfig(eos_token_id=text)).stop_ids == {end, text}
    assert Tokenizer(source).stop_ids == {end}


def test_the_digest_names_what_decides_ids() -> None:
    added, replaced, spoken = (
        fresh("bytes"),
        fresh("bytes"),
        fresh("bytes", chat_template=tokenizers_made.TEMPLATE + " "),
    )
    added.backend_tokenizer.add_tokens([AddedToken("fox")])
    replaced.backend_tokenizer.normalizer = normalizers.NFC()
    digests = [Tokenizer(each).digest for each in (added, replaced, spoken, made("bytes-prefix"), made("bytes"))]
    assert len(set(digests)) == 5
    assert Tokenizer(fresh("bytes")).digest == digests[-1]


def test_merges_do_not_depend_on_chance() -> None:
    source = fresh("bytes")
    source.backend_tokenizer.model.dropout = 0.5
    tokenizer = Tokenizer(source)
    assert len({tuple(tokenizer.encode_text("The quick brown fox")) for _ in range(20)}) == 1


def test_a_decoder_that_joins_words_still_spells_every_token() -> None:
    source = fresh("unknown")
    source.backend_tokenizer.decoder = decoders.WordPiece()
    tokenizer = Tokenizer(source)
    ids = [token_of("unknown", name) for name in ("is", "o", "e")]
    assert tokenizer.decode(ids) == " " + source.backend_tokenizer.decode(ids, skip_special_tokens=False)
