"""Recognition against a plain reference: every chunk looked for everywhere, then the stated rule."""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retriever import marks as hashing
from retriever.marks import MIN_BYTES, Mark, marks
from retriever.recognition import known_chunks
from retriever.recognition import mark_table as tables
from retriever.recognition.known_chunks import KnownChunks, Match
from retriever.types import MarkEntries
from tests.bench.recognize import SHARED, Corpus, entries_of, misfits, planted, prose, repeats

Chunks = Mapping[int, str]


class Caller:
    """Answers as a catalog does, and remembers what it was asked. `allowed` is None where everything is."""

    def __init__(self, texts: Callable[[int], str | None], allowed: Collection[int] | None = None) -> None:
        self._text, self._allowed = texts, allowed
        self.asked_text: list[int] = []
        self.asked_allowed: list[int] = []

    def texts(self, rows: Sequence[int]) -> dict[int, str]:
        self.asked_text += rows
        return {row: text for row in rows if (text := self._text(row)) is not None}

    def allowed(self, rows: Sequence[int]) -> Collection[int]:
        self.asked_allowed += rows
        return rows if self._allowed is None else self._allowed

    def find(self, known: KnownChunks, prompt: str) -> list[Match]:
        return known.find(prompt, texts=self.texts, allowed=self.allowed)


def mark(text: str) -> Mark | None:
    return marks([text])[0]


def entries(chunks: Chunks) -> MarkEntries:
    marked = [(row, made) for row, made in zip(chunks, marks(list(chunks.values())), strict=True) if made]
    return entries_of([row for row, _ in marked], [made for _, made in marked])


def find(chunks: Chunks, prompt: str, allowed: Collection[int] | None = None) -> list[Match]:
    return Caller(chunks.get, allowed).find(KnownChunks(entries(chunks)), prompt)


def by_the_rule(chunks: Chunks, prompt: str, allowed: Collection[int]) -> list[Match]:
    places: list[tuple[int, Match]] = []
    for row in sorted(allowed):
        text = chunks[row].strip()
        nbytes = len(text.encode("utf-8", "surrogatepass"))
        at = prompt.find(text) if nbytes >= MIN_BYTES else -1
        while at >= 0:
            places.append((-nbytes, Match(at, at + len(text), row)))
            at = prompt.find(text, at + 1)
    taken: list[Match] = []
    for _, match in sorted(places):
        if all(match.end <= other.start or other.end <= match.start for other in taken):
            taken.append(match)
    return sorted(taken)


@st.composite
def scenes(draw: st.DrawFn) -> tuple[str, Chunks, list[int]]:
    """A prompt of few letters or of a period, chunks that are mostly cut from it, and the rows that are allowed."""
    letters = draw(st.sampled_from(["ab", "a", "aé😀", "ab \n", "a\ud800\udc00", "abcdefgh 東"]))
    text = draw(st.text(letters, min_size=1, max_size=200))
    prompt = (text * draw(st.sampled_from([1, 1, 2, 40])))[:400]
    chunks: dict[int, str] = {}
    for row in draw(st.lists(st.integers(0, 60), unique=True, max_size=25)):
        start = draw(st.integers(0, len(prompt) - 1))
        cut = prompt[start : start + draw(st.integers(1, 130))]
        outer = draw(st.sampled_from(["", "", " ", "\n", letters[0]]))
        chunks[row] = draw(st.sampled_from([cut, cut, outer + cut, cut + outer, cut[:-1] + "b"]))
    return prompt, chunks, [row for row in chunks if draw(st.integers(0, 4))]


@settings(deadline=None, max_examples=400)
@given(scenes(), st.sampled_from([1, 30, 1 << 18]), st.sets(st.integers(0, 60)))
def test_found_is_what_the_rule_says(scene: tuple[str, Chunks, list[int]], piece: int, gone: set[int]) -> None:
    """However small the pieces are in which it is looked for, and whatever texts are gone meanwhile."""
    prompt, chunks, allowed = scene
    caller = Caller(lambda row: None if row in gone else chunks[row], allowed)
    with patch.object(known_chunks, "_PIECE", piece):
        assert caller.find(KnownChunks(entries(chunks)), prompt) == by_the_rule(chunks, prompt, set(allowed) - gone)
    assert set(caller.asked_text) <= set(allowed)
    assert len(set(caller.asked_text)) == len(caller.asked_text)


@settings(deadline=None, max_examples=100)
@given(scenes(), st.sampled_from([0, 1 << 63]))
def test_hashes_only_propose(scene: tuple[str, Chunks, list[int]], kept: int) -> None:
    """With one bit of them, or none, the same is found."""
    prompt, chunks, allowed = scene
    with patch.object(hashing, "_mixed", lambda hashes: hashes & np.uint64(kept)):
        assert find(chunks, prompt, allowed) == by_the_rule(chunks, prompt, allowed)


@settings(deadline=None, max_examples=200)
@given(scenes(), st.integers(0, 60))
def test_beyond_the_bound_all_found_stands_there_and_nothing_depends_on_the_forbidden(
    scene: tuple[str, Chunks, list[int]], bound: int
) -> None:
    prompt, chunks, allowed = scene
    with patch.object(known_chunks, "_PIECE", 5), patch.object(known_chunks, "MOST_PAIRS", bound):
        found = find(chunks, prompt, allowed)
        assert found == find({row: chunks[row] for row in allowed}, prompt)
    assert all(prompt[match.start : match.end] == chunks[match.row].strip() for match in found)
    assert all(left.end <= right.start for left, right in pairwise(found))
    assert {match.row for match in found} <= set(allowed)


@settings(deadline=None, max_examples=200)
@given(scenes(), st.data())
def test_adding_and_removing_is_as_knowing_from_the_start(
    scene: tuple[str, Chunks, list[int]], data: st.DataObject
) -> None:
    """Rows come again after they went, with the same text or with another one."""
    prompt, chunks, _ = scene
    chunks = {row: text for row, text in chunks.items() if mark(text)}
    now: dict[int, str] = {row: text for row, text in chunks.items() if row % 2}
    known = KnownChunks(entries(now))
    with patch.object(tables, "_SMALL", data.draw(st.sampled_from([0, 3, 1000]))):
        for _ in range(data.draw(st.integers(0, 8)) if chunks else 0):
            rows = data.draw(st.lists(st.sampled_from(sorted(chunks)), unique=True))
            if data.draw(st.booleans()):
                other = data.draw(st.sampled_from(sorted(chunks)))
                now |= (added := {row: data.draw(st.sampled_from([chunks[row], chunks[other]])) for row in rows})
                known.add(entries(added))
            else:
                known.remove(rows)
                now = {row: text for row, text in now.items() if row not in rows}
    assert len(known) == len(now)
    assert Caller(lambda row: now.get(row, chunks[row])).find(known, prompt) == find(now, prompt)


def test_too_short_a_text_has_no_mark_whatever_stands_around_it() -> None:
    assert mark(" \n" + "x" * 15 + "\t" * 9) is None
    assert mark("é" * 7 + "x") is None
    assert mark("é" * 8) is not None
    assert mark(" sixteen letters!\n") == mark("sixteen letters!")
    assert find({}, "nothing is known") == find({1: "x" * 16}, "") == []


def test_a_batch_of_marks_is_as_one_by_one() -> None:
    texts = [prose(number, length) for number, length in enumerate([*range(70), 300, 1000, 1024, 1025, 9000])]
    with patch.object(hashing, "_PIECE_BYTES", 100):
        assert marks(texts) == [mark(text) for text in texts]


def test_marks_stay_what_catalogs_hold() -> None:
    """These numbers never change: a catalog would find nothing any more."""
    assert mark("sixteen letters!") == Mark(-3779138607419002970, -3779138607419002970, 16)
    assert mark("Zwölf Boxkämpfer jagen Viktor 🙂 \ud800" * 9) == Mark(1072775528892299557, -6978028547755220951, 360)


def test_columns_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\[2, 1, 1, 1\]"):
        MarkEntries.columns(rows=[1, 2], heads=[1], tails=[1], nbytes=[20])


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus(100_000)


@pytest.fixture(scope="module")
def many(corpus: Corpus) -> KnownChunks:
    marked = list(corpus.marks())
    return KnownChunks(entries_of([row for row, _ in marked], [made for _, made in marked]))


@pytest.mark.parametrize("shared", [False, True])
def test_among_100_000_chunks_the_planted_are_found_and_nothing_else(
    corpus: Corpus, many: KnownChunks, *, shared: bool
) -> None:
    """Where 10,000 of them begin alike too: and then hardly more rows are asked about than there are."""
    prompt = planted(corpus, 7, rows=range(SHARED) if shared else range(SHARED, corpus.count))
    caller = Caller(corpus.text)
    assert len(prompt.expected) == 60
    assert caller.find(many, prompt.text) == prompt.expected
    assert sorted(caller.asked_text) == sorted(match.row for match in prompt.expected)
    assert len(caller.asked_allowed) < 200


def test_one_letter_known_in_10_000_lengths_is_cut_into_the_longest() -> None:
    chunks, prompt = repeats()
    longest = len(chunks[-1])
    whole = len(prompt) // longest
    expected = [Match(longest * turn, longest * (turn + 1), len(chunks) - 1) for turn in range(whole)]
    rest = len(prompt) - longest * whole
    expected.append(Match(longest * whole, len(prompt), rest - len(chunks[0])))
    assert find(dict(enumerate(chunks)), prompt) == expected


def test_beginnings_and_ends_that_never_fit_are_given_up_and_only_what_is_longer_is_found() -> None:
    made, prompt = misfits()
    chunks = dict(enumerate(made))
    assert find(chunks, prompt) == []
    longer, shorter = 30_000, 30_001
    ends = {longer: prompt[55_000:74_000], shorter: prompt[75_000:]}
    both = [Match(55_000, 74_000, longer), Match(75_000, len(prompt), shorter)]
    assert find(ends, prompt) == both
    assert find(chunks | ends, prompt) == both[:1]


def langchain(text: str) -> list[str]:
    module = pytest.importorskip("langchain_text_splitters")
    return module.RecursiveCharacterTextSplitter(chunk_size=1000, chunk_overlap=200).split_text(text)


def llama_index(text: str) -> list[str]:
    module = pytest.importorskip("llama_index.core.node_parser")
    return module.SentenceSplitter(chunk_size=1024, chunk_overlap=200).split_text(text)


@pytest.mark.parametrize("cut", [langchain, llama_index])
def test_what_others_cut_and_paste_is_recognised(cut: Callable[[str], list[str]]) -> None:
    document = prose(8, 80_000)
    chunks = dict(enumerate(cut(document)))
    assert len(chunks) > 20
    pasted = [chunks[row].strip() for row in chunks]
    assert covered(chunks, "\n\n---\n\n".join(pasted)) >= 0.95 * sum(map(len, pasted))
    assert covered(chunks, "\n\n".join(reversed(pasted))) >= 0.95 * sum(map(len, pasted))
    assert covered(chunks, document) >= 0.4 * len(document)  # overlapping neighbours exclude each other


def covered(chunks: Chunks, prompt: str) -> int:
    return sum(match.end - match.start for match in find(chunks, prompt))
