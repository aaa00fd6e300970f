"""Facts of the chunker: nothing is lost, budgets hold, blocks stay whole, and an edit changes few chunks."""

import random
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from retriever.chunking import Counter, CutRules, count_words, cut, pieces
from retriever.chunking.blocks import lines
from retriever.documents import PageStart
from service.builtin import CHECKPOINT

TOKENIZER = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))


def count_model(texts: Sequence[str]) -> list[int]:
    plain = [text.encode("utf-8", "replace").decode() for text in texts]  # the tokenizer takes no lone surrogates
    return [len(encoding.ids) for encoding in TOKENIZER.encode_batch(plain, add_special_tokens=False)]


def count_bytes(texts: Sequence[str]) -> list[int]:
    return [len(text.encode("utf-8", "surrogatepass")) for text in texts]


def count_more_together(texts: Sequence[str]) -> list[int]:
    """A whole counts far more than its pieces."""
    return [len(text) ** 2 // 8 for text in texts]


COUNTERS: list[Counter] = [count_words, count_model, count_bytes, count_more_together]

SNIPPETS = [
    "# Title\n", "## Sub\n\n", "Name\n====\n", "A sentence. Another one! ", "Dr. No met J. Doe.\n", "\n\n",
    "\r\n", "\n", " " * 40,
    "```python\nx = 1\n\ny = 2\n```\n", "```\n", "~~~~\n", "| a | b |\n|---|---|\n| 1 | 2 |\n", "|" * 30,
    "    code\n\n    more\n",
    "- item\n", "  * nested\n", "1. first\n", "東京は日本の首都です。人口は多い。", "word " * 12, "x" * 90,
    "é\u0301\u200d", "\t", "\x00\x1c\u2028",
    "\ud800", "a|b\n", ".!?" * 20, '."""', "```a`\n",
]  # fmt: skip
TEXTS = st.lists(st.one_of(st.sampled_from(SNIPPETS), st.text(max_size=30)), max_size=40).map("".join)


@given(st.text("a\r\n \x85", max_size=12), st.integers(0, 12), st.integers(0, 12))
def test_lines_end_where_their_pattern_says(text: str, start: int, stop: int) -> None:
    start, stop = sorted((min(start, len(text)), min(stop, len(text))))
    pattern = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
    assert [*lines(text, start, end=stop)] == [each.span() for each in pattern.finditer(text, start, stop)]


@settings(max_examples=250, deadline=None)
@given(TEXTS, st.sampled_from([1, 3, 8, 20, 64]), st.sampled_from(COUNTERS))
def test_parts_are_the_text_in_order_and_fit_the_budget(text: str, tokens: int, count: Counter) -> None:
    parts = cut(text, CutRules(tokens), count=count)
    assert "".join(part.text for part in parts) == text
    assert cut(text, CutRules(tokens), count=count) == parts
    start = 0
    for part, counted in zip(parts, count([part.text for part in parts]), strict=True):
        assert part.start == start and part.text
        assert counted <= tokens or len(part.text) == 1
        start += len(part.text)


@settings(max_examples=150, deadline=None)
@given(TEXTS, st.sampled_from([3, 20, 64]))
def test_no_part_is_white_space_alone(text: str, tokens: int) -> None:
    parts = cut(text, CutRules(tokens), count=count_words)
    assert len(parts) <= 1 or not any(part.text.isspace() for part in parts)


WORDS = ["river", "stone", "market", "engine", "paper", "signal", "garden", "copper", "window", "letter", "method"]
Style = Callable[[random.Random], str]


def sentence(rng: random.Random, words: int = 0) -> str:
    return " ".join(rng.choices(WORDS, k=words or rng.randint(4, 24))).capitalize() + f" {rng.randrange(10**6)}."


def prose(rng: random.Random, least: int = 2, most: int = 8) -> str:
    return " ".join(sentence(rng) for _ in range(rng.randint(least, most))) + "\n\n"


def code(rng: random.Random) -> str:
    rows = [f"{rng.choice(WORDS)} = {rng.choice(WORDS)}({rng.randrange(999)})\n" for _ in range(rng.randint(2, 14))]
    return "```python\n" + "".join(row + "\n" * (rng.random() < 0.2) for row in rows) + "```\n\n"


def cjk(rng: random.Random) -> str:
    return "".join(
        "".join(chr(rng.randrange(0x4E00, 0x9000)) for _ in range(rng.randint(5, 40))) + "。"
        for _ in range(rng.randint(1, 6))
    )


def items(rng: random.Random) -> str:
    nested = [rng.random() < 0.3 for _ in range(rng.randint(1, 7))]
    return "".join(f"{'  ' * is_nested}- {sentence(rng)}\n" for is_nested in nested) + "\n"


def table(rng: random.Random) -> str:
    rows = [f"| {rng.choice(WORDS)} | {rng.randrange(10**5)} |\n" for _ in range(rng.randint(1, 9))]
    return "| a | b |\n|---|---|\n" + "".join(rows) + "\n"


def mixed(rng: random.Random) -> str:
    kinds: list[Style] = [prose, prose, code, items, table, STYLES["headings"]]
    return rng.choice(kinds)(rng)


STYLES: dict[str, Style] = {
    "prose": prose,
    "short paragraphs": lambda rng: prose(rng, 1, 2),
    "long paragraphs": lambda rng: prose(rng, 6, 14),
    "paragraphs above the budget": lambda rng: prose(rng, 25, 40),
    "no full stops": lambda rng: " ".join(rng.choices(WORDS, k=rng.randint(10, 90))) + "\n\n",
    "headings": lambda rng: "#" * rng.randint(1, 4) + f" {sentence(rng, 3)}\n\n" + prose(rng, 1, 6),
    "code": lambda rng: prose(rng, 1, 3) + code(rng),
    "lists": items,
    "table": table,
    "cjk": lambda rng: cjk(rng) + "\n\n",
    "one cjk paragraph": cjk,
    "one line of sentences": lambda rng: sentence(rng) + " ",
    "one line of words": lambda rng: " ".join(rng.choices(WORDS, k=20)) + f" {rng.randrange(10**6)} ",
    "no spaces": lambda rng: "".join(rng.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=rng.randint(20, 200))),
    "log lines": lambda rng: f"{rng.randrange(10**6)} GET /{rng.choice(WORDS)}/{rng.choice(WORDS)} 200\n",
    "few lines, repeated": lambda rng: f"The same line {rng.randrange(4)} of a form\n",
    "one line, repeated": lambda rng: "The same line stands here again and again\n",
    "boilerplate": lambda rng: prose(rng, 1, 4) + "Confidential. Do not copy this page. All rights are reserved.\n\n",
    "mixed": mixed,
}  # fmt: skip
TOKENS = 128


def blocks_of(style: str, rng: random.Random, parts: int) -> list[str]:
    blocks: list[str] = []
    length = 0
    while length < parts * 0.6 * TOKENS:
        blocks.append(STYLES[style](rng))
        length += count_words(blocks[-1:])[0]
    return blocks


@dataclass(frozen=True, slots=True)
class Edit:
    """A document before and after, and what was taken out and put in."""

    old: list[str]
    new: list[str]
    out: str
    put: str


def edit(style: str, seed: int, *, parts: int) -> Edit:
    """A block is inserted, deleted, replaced or changed in a word: somewhere, at the front, or at the end."""
    rng = random.Random(f"{style} {seed}")
    old = blocks_of(style, rng, parts)
    place = rng.choice([0, len(old), *[rng.randrange(len(old))] * 6])
    fresh, kind = STYLES[style](rng), rng.randrange(4)
    if kind == 0 or place == len(old):
        return Edit(old, [*old[:place], fresh, *old[place:]], "", fresh)
    if kind == 1:
        return Edit(old, old[:place] + old[place + 1 :], old[place], "")
    if kind == 2:
        return Edit(old, [*old[:place], fresh, *old[place + 1 :]], old[place], fresh)
    words = old[place].split(" ")
    words[rng.randrange(len(words))] += "x"
    return Edit(old, [*old[:place], " ".join(words), *old[place + 1 :]], "", "")


def changed(done: Edit, count: Counter = count_words) -> tuple[int, int]:
    """New and removed ids, less two for each whole budget that was put in or taken out: those are the edit's own."""
    old, new = (
        {part.id for part in cut("".join(text), CutRules(TOKENS), count=count)} for text in (done.old, done.new)
    )
    put, out = count([done.put, done.out])
    return len(new - old) - 2 * (put // TOKENS), len(old - new) - 2 * (out // TOKENS)


def half_budgets(done: Edit) -> int:
    return max(count_words([done.put, done.out])) * 2 // TOKENS


def changes(trials: int, *, first: int = 0) -> list[int]:
    """The greater of new and removed ids, for edits below half a budget."""
    edits = [edit(style, seed, parts=10) for style in STYLES for seed in range(first, first + trials)]
    return [max(changed(done)) for done in edits if half_budgets(done) == 0]


def test_an_edit_below_half_a_budget_changes_few_chunks() -> None:
    found = changes(20)
    assert sum(found) < 1.6 * len(found)
    assert sum(most > 3 for most in found) <= 0.01 * len(found)
    assert max(found) <= 5


@pytest.mark.long
def test_in_thousands_of_edits_hardly_any_changes_more_than_three_chunks() -> None:
    found = changes(1000, first=1000)
    assert len(found) > 10_000
    assert sum(most > 3 for most in found) <= 0.005 * len(found)
    assert max(found) <= 6


@pytest.mark.parametrize("style", ["prose", "mixed", "one line of sentences", "boilerplate"])
def test_the_models_own_tokenizer_changes_no_more(style: str) -> None:
    for seed in range(4):
        done = edit(style, seed, parts=10)
        assert max(changed(done, count_model)) <= 3 + half_budgets(done)


@pytest.mark.parametrize("style", STYLES)
def test_a_paragraph_at_the_front_of_a_long_document_leaves_its_end_alone(style: str) -> None:
    blocks = blocks_of(style, random.Random(style), 100)
    fresh = STYLES[style](random.Random("fresh"))
    old, new = (cut("".join(text), CutRules(TOKENS), count=count_words) for text in (blocks, [fresh, *blocks]))
    moved = {part.id for part in new} - {part.id for part in old}
    assert len(moved) <= 3 + 2 * (count_words([fresh])[0] // TOKENS)


@pytest.mark.parametrize("style", ["prose", "short paragraphs", "long paragraphs", "headings", "cjk", "mixed"])
def test_parts_of_ordinary_prose_are_neither_small_nor_near_empty(style: str) -> None:
    text = "".join(blocks_of(style, random.Random(style), 120))
    tokens = count_words([part.text for part in cut(text, CutRules(TOKENS), count=count_words)])
    assert 0.52 <= sum(tokens) / len(tokens) / TOKENS <= 0.75
    assert sum(counted < TOKENS / 5 for counted in tokens) < 0.05 * len(tokens)


@pytest.mark.parametrize("seed", range(12))
def test_what_fits_the_budget_and_is_solid_is_not_torn(seed: int) -> None:
    rng = random.Random(seed)
    solids: list[str] = []
    text = ""
    for number in range(20):
        rows = [f"{number} {rng.choice(WORDS)} {rng.randrange(99)}" for _ in range(rng.randint(2, 14))]
        solid = rng.choice(
            [
                "~~~\n" + "\n\n".join(rows) + "\n~~~\n",
                "| a | b | c |\n|---|---|---|\n" + "".join(f"| {row} |\n" for row in rows),
                "".join(f"    {row}.\n" for row in rows),
            ]
        )
        solids += [solid] * (count_words([solid])[0] <= TOKENS)
        text += prose(rng, 1, 4) + solid + "\n"
    parts = [part.text for part in cut(text, CutRules(TOKENS), count=count_words)]
    assert solids and [solid for solid in solids if not any(solid in part for part in parts)] == []


def test_a_heading_stands_with_what_follows() -> None:
    rng = random.Random(3)
    for depth in range(1, 7):
        text = "".join("#" * depth + f" Head\n\n{prose(rng, 1, 5)}Name\n====\n{prose(rng, 1, 5)}" for _ in range(60))
        for part in cut(text, CutRules(TOKENS), count=count_words):
            assert not part.text.rstrip().endswith(("# Head", "===="))


def test_cuts_stand_at_the_ends_of_sentences_where_those_are_short() -> None:
    for style, ends in (("one line of sentences", "."), ("one cjk paragraph", "。")):
        text = "".join(blocks_of(style, random.Random(1), 60))
        assert all(part.text.rstrip().endswith(ends) for part in cut(text, CutRules(TOKENS), count=count_words))
    text = "Dr. Jones met J. Smith, i.e. her. The cost is 3.5 approx. of it. " * 99
    parts = cut(text, CutRules(26), count=count_words)
    assert {part.text.split()[-1] for part in parts} <= {"her.", "it."}


def test_a_part_is_on_the_page_of_its_first_character() -> None:
    text = "".join(blocks_of("prose", random.Random(5), 30))
    pages = [PageStart(7, 50), PageStart(8, len(text) // 2), PageStart(9, len(text) // 2), PageStart(12, len(text) - 9)]
    for part in cut(text, CutRules(TOKENS), count=count_words, pages=pages):
        assert part.start is not None and text.startswith(part.text, part.start)
        expected = bisect_right([page.start for page in pages], part.start)
        assert part.page == (pages[expected - 1].number if expected else None)
    (part,) = cut("   x", CutRules(9), count=count_words, pages=[PageStart(1, 0), PageStart(2, 3)])
    assert part.page == 2


def test_of_no_text_there_is_no_part_and_of_white_space_one() -> None:
    assert cut("", CutRules(), count=count_words) == ()
    assert [part.text for part in cut(" \n\n \t", CutRules(1), count=count_words)] == [" \n\n \t"]


HOSTILE = {
    "headings": "# a\n", "bare headings": "#\n", "backticks": "`", "fences": "```\n", "open fences": "```a\n",
    "bars": "|", "rows of bars": "|\n", "rows that are no table": "a|b\n", "full stops": ".", "quotes": '."',
    "spaces": " ", "lines": "\n", "items": "- ", "indents": "    x\n\n", "letters": "a", "rules": "---\n",
    "cjk stops": "。", "underlined": "a\n=\n",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_text_is_counted_in_few_batches_and_at_most_four_times(name: str) -> None:
    shown = calls = 0

    def count(texts: Sequence[str]) -> list[int]:
        nonlocal shown, calls
        shown, calls = shown + sum(map(len, texts)), calls + 1
        return count_words(texts)

    text = (HOSTILE[name] * 60_000)[:60_000] + "end"
    assert "".join(part.text for part in cut(text, CutRules(), count=count)) == text
    assert shown <= 4 * len(text)
    assert calls <= 6


def test_longer_fences_close_shorter_ones_and_one_that_nothing_closes_is_text() -> None:
    inner = "```\n" + "word word.\n\n" * 20 + "```\n"
    text = prose(random.Random(1)) * 3 + "````md\n" + inner + "````\n\n" + "```\n" + prose(random.Random(2)) * 9
    parts = [part.text for part in cut(text, CutRules(TOKENS), count=count_words)]
    assert any("````md\n" + inner + "````\n" in part for part in parts)
    assert len(parts) > 6


def test_rules_and_counters_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="tokens 0"):
        CutRules(0)
    with pytest.raises(ValueError, match="answered 1"):
        cut("One. Two. Three.", CutRules(1), count=lambda texts: [1])


@pytest.mark.parametrize("sign", ["a", "1", " ", "\n", "#", ".", "。", "一"])
def test_no_search_and_no_counter_sees_an_endless_stretch_at_once(sign: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Either lets no other thread run until it has seen all that it was given."""
    seen: list[int] = []

    class Watched:
        def finditer(self, text: str, start: int, end: int) -> Iterator[re.Match[str]]:
            seen.append(end - start)
            return sentence.finditer(text, start, end)

    def count(texts: Sequence[str]) -> list[int]:
        seen.extend(map(len, texts))
        return count_bytes(texts)

    sentence = pieces._SENTENCE
    monkeypatch.setattr(pieces, "_SENTENCE", Watched())
    monkeypatch.setattr(pieces, "STRETCH", 5_000)
    text = f"Before. {sign * (3 * pieces.STRETCH)} behind."
    assert "".join(part.text for part in cut(text, CutRules(256), count=count)) == text
    assert max(seen) <= 2 * pieces.STRETCH


@given(TEXTS)
def test_sentences_are_the_same_in_whatever_stretches_they_are_looked_for(text: str) -> None:
    whole = [*pieces.pieces(text)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "STRETCH", 100)  # longer than any run of signs
        assert [*pieces.pieces(text)] == whole
