"""Search by words against a BM25 of its own, in many scripts, and against queries that want to break it."""

import math
import random
import sqlite3
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import pytest

from retriever.catalog import lexical, postings
from retriever.catalog.catalog import Catalog
from retriever.catalog.sqlite import SqliteCatalog
from retriever.documents import Document, DocumentPart
from retriever.filter_condition import EVERYTHING, FilterCondition, condition, in_collection
from retriever.types import WordMatch
from tests.retriever.catalogs import put

# Words that stemming leaves as they are, the first ones far more frequent.
VOCABULARY = tuple(f"w{number}q" for number in range(400))


def single(*texts: str) -> list[Document]:
    """One document for each text, named by its place."""
    return [Document(f"{place:05}", (DocumentPart(text),)) for place, text in enumerate(texts)]


def search(catalog: Catalog, query: str, *, allowed: FilterCondition = EVERYTHING, limit: int = 10) -> list[WordMatch]:
    with catalog.view() as view:
        return view.lexical(query, allowed, limit=limit)


def found(catalog: Catalog, query: str) -> list[str]:
    return [each.passage.text for each in search(catalog, query, limit=1000)]


def sentence(chance: random.Random, length: int) -> str:
    """Frequent words stand in it many times."""
    places = (min(int(chance.paretovariate(0.6)) - 1, len(VOCABULARY) - 1) for _ in range(length))
    return " ".join(VOCABULARY[place] for place in places)


def statement(chance: random.Random, length: int) -> str:
    """Few words stand in it twice, as in the texts of people."""
    told = list(dict.fromkeys(sentence(chance, 4 * length).split()))[:length]
    return " ".join(chance.choices(told, k=length // 5) + told)


def corpus(chance: random.Random, *, documents: int) -> list[Document]:
    """Chunks of all lengths, some shared, some with a title or a field of their own."""
    made: list[Document] = []
    texts = [sentence(chance, chance.randint(1, 40)) for _ in range(documents * 2)]
    for number in range(documents):
        parts = tuple(
            DocumentPart(chance.choice(texts), metadata={"own": number % 3} if chance.random() < 0.3 else {})
            for _ in range(chance.randint(0, 4))
        )
        title = sentence(chance, 2) if chance.random() < 0.5 else ""
        made.append(Document(f"d{number}", parts, title, {"n": number}))
    return made


def dense(documents: Sequence[Document], query: str, *, among: Sequence[Document]) -> dict[str, tuple[float, float]]:
    """Text -> best score and share, by the formula alone, over all passages. Counts are of all documents."""
    bodies = [(each.title + " " + part.text).split() for each in documents for part in each.parts]
    mean = sum(map(len, bodies)) / len(bodies)
    asked = Counter(query.split())
    holding = {word: sum(word in body for body in bodies) for word in asked}
    weight = {
        word: times * math.log(1 + (len(bodies) - holding[word] + 0.5) / (holding[word] + 0.5))
        for word, times in asked.items()
    }
    best: dict[str, tuple[float, float]] = {}
    for document in among:
        for part in document.parts:
            counted = Counter((document.title + " " + part.text).split())
            norm = 1.2 * (0.25 + 0.75 * counted.total() / mean)
            score = sum(weight[word] * counted[word] * 2.2 / (counted[word] + norm) for word in asked)
            share = sum(weight[word] for word in asked if counted[word]) / sum(weight.values())
            if score:
                best[part.text] = max(best.get(part.text, (0.0, 0.0)), (score, share))
    return best


def check(got: Sequence[WordMatch], wanted: dict[str, tuple[float, float]], *, limit: int) -> None:
    """The same scores in the same order; of equal ones any."""
    texts = [each.passage.text for each in got]
    assert len(set(texts)) == len(texts) == min(limit, len(wanted))
    scores = sorted((score for score, _ in wanted.values()), reverse=True)[:limit]
    assert [each.score for each in got] == pytest.approx(scores)
    for each in got:
        assert (each.score, each.share) == pytest.approx(wanted[each.passage.text])
    assert all(one.score >= other.score for one, other in pairwise(got))


def queries(chance: random.Random, *, count: int) -> list[str]:
    return [
        *(
            " ".join(chance.choices(VOCABULARY[: chance.choice((5, 50, 400))], k=chance.randint(1, 8)))
            for _ in range(count)
        ),
        "unknown", f"unknown {VOCABULARY[0]}", " ".join(VOCABULARY),
    ]  # fmt: skip


# Ranking


def test_a_search_ranks_as_bm25_over_all_passages_does(catalog: Catalog) -> None:
    chance = random.Random(1)
    documents = corpus(chance, documents=120)
    put(catalog, *documents)
    for query in queries(chance, count=40):
        for limit in (1, 10, 1000):
            check(search(catalog, query, limit=limit), dense(documents, query, among=documents), limit=limit)


def test_a_filter_changes_what_is_found_and_no_score(catalog: Catalog) -> None:
    chance = random.Random(2)
    documents = corpus(chance, documents=100)
    put(catalog, *documents)
    among = [each for each in documents if int(each.id[1:]) < 9]
    for query in queries(chance, count=30):
        got = search(catalog, query, allowed=condition({"n": {"$lt": 9}}) & in_collection("c"), limit=7)
        check(got, dense(documents, query, among=among), limit=7)
        assert search(catalog, query, allowed=in_collection("unknown")) == []


def test_scores_follow_what_comes_and_goes(tmp_path: Path, catalog: Catalog) -> None:
    """At the first search and the next, in a catalog that was searched before and in one that is opened anew."""
    chance = random.Random(3)
    held = {each.id: each for each in corpus(chance, documents=80)}
    put(catalog, *held.values())
    for _ in range(12):
        gone, come = chance.choice(list(held)), replace(corpus(chance, documents=1)[0], id=f"d{chance.randrange(90)}")
        with catalog.change() as change:
            change.delete([gone])
            change.put([come], collection="c")
        del held[gone]
        held[come.id] = come
        anew = SqliteCatalog(tmp_path / "catalog.sqlite")
        for query in chance.sample(queries(chance, count=6), k=4):
            for opened in (catalog, catalog, anew):
                check(search(opened, query, limit=20), dense(now := [*held.values()], query, among=now), limit=20)
        anew.close()


def test_within_a_bound_all_is_as_if_nothing_else_were_there(tmp_path: Path) -> None:
    """Scores, shares and order, while what its asker may not see comes and goes, some of it not serving yet."""
    chance = random.Random(9)
    own, foreign = corpus(chance, documents=90), corpus(chance, documents=90)
    mine, bound = [replace(each, id=f"own {each.id}") for each in own], in_collection("own")
    alone, together = SqliteCatalog(tmp_path / "alone.sqlite"), SqliteCatalog(tmp_path / "together.sqlite")
    put(alone, *mine, collection="own")
    for first in range(0, 90, 30):
        put(together, *foreign[first : first + 30], collection="foreign")
        put(together, *mine[first : first + 30], collection="own")
    with together.change() as change:
        change.delete([each.id for each in foreign[:20]])
        change.stage(replace(foreign[0], id="own staged"), collection="own")
    for query in queries(chance, count=40):
        with alone.view() as view:
            wanted = view.lexical(query, EVERYTHING, limit=20)
        with together.view() as view:
            got = view.lexical(query, bound, limit=20, within=bound)
        assert [(each.passage.id, each.score, each.share) for each in got] == [
            (each.passage.id, pytest.approx(each.score), pytest.approx(each.share)) for each in wanted
        ]
    alone.close()
    together.close()


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the catalog were large."""
    monkeypatch.setattr(lexical, "ROWS", 150)
    monkeypatch.setattr(lexical, "SCORED", 40)
    monkeypatch.setattr(postings, "COUNTED", 50)


@pytest.mark.usefixtures("narrow")
def test_a_pruned_search_finds_nearly_the_same(catalog: Catalog) -> None:
    """For questions that have a word which tells something beside those that stand everywhere."""
    chance = random.Random(4)
    documents = single(*(statement(chance, chance.randint(5, 40)) for _ in range(1000)))
    put(catalog, *documents)
    shares: list[float] = []
    for _ in range(60):
        words = chance.sample(VOCABULARY[30:], k=chance.randint(1, 3)) + chance.sample(VOCABULARY[:8], k=3)
        wanted = dense(documents, " ".join(words), among=documents)
        got = search(catalog, " ".join(words))
        assert len(got) == min(10, len(wanted))
        assert all(one.score >= other.score for one, other in pairwise(got))
        tenth = sorted((score for score, _ in wanted.values()), reverse=True)[:10][-1:]
        shares += [sum(wanted[each.passage.text][0] >= tenth[0] * 0.999 for each in got) / len(got)] if got else []
    assert sum(shares) / len(shares) > 0.85


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("kept", [3, 59, 61, 200])
def test_filters_hold_before_anything_is_cut(catalog: Catalog, kept: int) -> None:
    """What the filter keeps fits worst of all, and there is much more of what it does not keep."""
    better = [f"{VOCABULARY[0]} {VOCABULARY[1]} n{number}q" for number in range(400)]
    worse = [f"{VOCABULARY[0]} {'filling ' * 30} m{number}q" for number in range(kept)]
    put(catalog, *(Document(f"b{place}", (DocumentPart(text),)) for place, text in enumerate(better)))
    put(
        catalog, *(Document(f"w{place}", (DocumentPart(text),), "", {"kept": True}) for place, text in enumerate(worse))
    )
    for query in (VOCABULARY[0], f"{VOCABULARY[0]} {VOCABULARY[1]} n7q", f"n8q {VOCABULARY[0]}"):
        got = search(catalog, query, allowed=condition({"kept": True}))
        assert len(got) == min(10, kept) and all(each.passage.metadata == {"kept": True} for each in got)


def test_a_word_is_found_as_soon_as_it_is_put_and_no_longer_than_it_is_there(catalog: Catalog) -> None:
    """Though it was asked for before, when it stood nowhere, and the catalog has hardly grown."""
    put(catalog, *single(*["plum"] * 100))
    for _ in range(3):
        assert search(catalog, "zebra") == []
        put(catalog, Document("new", (DocumentPart("zebra plum"),)))
        assert found(catalog, "zebra") == ["zebra plum"]
        with catalog.change() as change:
            change.delete(["new"])


def test_a_version_that_serves_late_is_found(catalog: Catalog) -> None:
    """Its passages are older than others that were searched already."""
    put(catalog, *single(*["plum"] * 100))
    with catalog.change() as change:
        version = change.stage(Document("late", (DocumentPart("zebra late"),)), collection="c")
    put(catalog, Document("soon", (DocumentPart("zebra soon"),)))
    assert found(catalog, "zebra") == ["zebra soon"]
    with catalog.change() as change:
        change.serve(version)
    assert set(found(catalog, "zebra")) == {"zebra soon", "zebra late"}


def test_views_of_two_states_search_their_own(catalog: Catalog) -> None:
    """What one has read does not change what the other finds, now or later."""
    put(catalog, *single("zebra plum", "plum"))
    added = [Document(f"n{number}", (DocumentPart(f"zebra {'fig ' * number}"),)) for number in range(20)]
    with catalog.view() as before:
        with catalog.change() as change:
            change.put(added, collection="c")
            change.delete(["00000"])
        with catalog.view() as after:
            for _ in range(2):
                assert [each.passage.text for each in before.lexical("zebra", EVERYTHING, limit=99)] == ["zebra plum"]
                assert len(after.lexical("zebra", EVERYTHING, limit=99)) == 20
                assert len(before.lexical("fig plum", EVERYTHING, limit=99)) == 2
                assert len(after.lexical("fig plum", EVERYTHING, limit=99)) == 20
                assert len(after.lexical("zebra", in_collection("c"), limit=99)) == 20
                assert len(before.lexical("zebra", in_collection("c"), limit=99)) == 1
    documents = [Document("00001", (DocumentPart("plum"),)), *added]
    for query in ("zebra", "fig zebra", "plum"):
        check(search(catalog, query, limit=9), dense(documents, query, among=documents), limit=9)


@pytest.mark.usefixtures("narrow")
def test_of_many_passages_with_the_only_word_the_best_are_found(catalog: Catalog) -> None:
    """They stand behind others that hold it too, in more words."""
    worse = [f"apple {'plum ' * 9} n{number}q" for number in range(300)]
    put(catalog, *single(*worse, *(f"apple apple apple m{number}q" for number in range(5))))
    got = search(catalog, "apple", limit=5)
    assert [each.passage.text.count("apple") for each in got] == [3] * 5


def test_each_chunk_is_found_once_where_it_fits_best(catalog: Catalog) -> None:
    put(
        catalog,
        Document("a", (DocumentPart("apple"), DocumentPart("apple"))),
        Document("b", (DocumentPart("apple"),), "apple"),
    )
    put(catalog, Document("c", (DocumentPart("apple"),), "pear"))
    (only,) = search(catalog, "apple")
    assert only.passage.document == "b"
    assert [each.passage.document for each in search(catalog, "pear")] == ["c"]
    assert search(catalog, "apple", limit=0) == []


# Scripts

TOLD = {
    "東京都に住む": ("東京", "京都", "東", "京", "都", "む", "住む", "東京都に住む", "東京 住む"),
    "私はカタカナを読む": ("カタカナ", "ｶﾀｶﾅ", "タカ", "読"),
    "中华人民共和国": ("人民", "共和国", "国", "中"),
    "สวัสดีชาวโลก": ("สวัสดี", "โลก", "ชาว"),
    "대한민국 서울특별시": ("대한", "민국", "서울", "시", "서울특별시"),
    "Le café était fermé à l’été": ("cafe", "CAFÉ", "cafe\u0301", "etait", "ferme", "été"),
    "Die Straße über München": ("strasse", "STRASSE", "uber", "münchen", "Munchen"),
    "Москва слезам не верит": ("москва", "МОСКВА", "слезам"),
    "Ελλάδα και Αθήνα": ("ελλαδα", "ΑΘΗΝΑ", "Ελλάδα"),
    "हिन्दी भाषा": ("हिन्दी", "भाषा"),
    "مرحبا بالعالم": ("مرحبا", "بالعالم"),
    "GPUで学習するLLM入門": ("gpu", "学習", "llm", "入門", "GPU 入門"),
    "ＦＵＬＬ width ﬁne ２０２４": ("full", "fine", "2024"),
    "running quickly through the houses": ("run", "runs", "house", "HOUSES"),
    "version v1.2.3-rc4 of foo_bar": ("v1.2.3", "rc4", "foo", "bar", "foo_bar"),
    "𠮷野家で食べる 🍜": ("𠮷野家", "𠮷", "野家"),
    "တစ်ခုသော မြန်မာ": ("မြန်မာ",),
    "a nul\0between": ("nul", "between", "nul\0between"),
}


def test_texts_of_every_script_are_found_by_their_words(catalog: Catalog) -> None:
    put(catalog, *single(*TOLD))
    for text, asked in TOLD.items():
        for query in asked:
            assert found(catalog, query)[:1] == [text], query


def test_a_text_of_another_script_is_not_found(catalog: Catalog) -> None:
    put(catalog, *single(*TOLD))
    for query in ("大阪", "京東", "한국", "москвич", "kafe", "猫", "w", "🍜", "🙂", "…", "_", "", " \n"):
        assert found(catalog, query) == [], query


# Hostile queries


@pytest.mark.parametrize(
    "query",
    [
        *('apple" OR "pear', "apple AND NOT apple", "apple NEAR(pear, 0)", "body : apple", "{body}: ^apple", "apple*"),
        *('"apple', "((((apple", "apple' OR 1=1; DROP TABLE terms; --", "apple\0", "\0apple\0\0"),
        *("\ud800 apple \udfff", "apple \uffff \U0010ffff \u202e", "-apple", "+apple\\", "apple -- /* */"),
        *("' apple ''", "%apple_", "NULL apple"),
    ],
)
def test_a_query_is_words_and_nothing_else(catalog: Catalog, query: str) -> None:
    put(catalog, *single("apple", "fig", "plum"))
    assert found(catalog, query) == ["apple"]


@pytest.mark.parametrize(
    "query", ["AND", "OR NOT", "NEAR", '"', "*", "^", "\0", "\ud800", "'", ":", "-", "terms", "rank"]
)
def test_operators_alone_are_words_that_stand_nowhere(catalog: Catalog, query: str) -> None:
    put(catalog, *single("apple"))
    assert found(catalog, query) == []


def million(piece: str) -> str:
    return (piece * (1_000_000 // len(piece) + 1))[:1_000_000]


LONGEST = {
    "one word": million("a"),
    "one word again and again": million("apple "),
    "different words": million(" ".join(f"x{number}" for number in range(160_000))),
    "different characters": million("".join(chr(0x4E00 + number) for number in range(20_000))),
    "one character": million("東"),
    "accents": "a" + million("\u0301"),
    "brackets": million('("'),
    "nul": million("\0"),
    "surrogates": million("\ud800"),
}


class Traced(SqliteCatalog):
    """Remembers what is asked of the database."""

    statements: ClassVar[list[str]] = []

    def _open(self) -> sqlite3.Connection:
        connection = super()._open()
        connection.set_trace_callback(self.statements.append)
        return connection


@pytest.mark.parametrize("query", LONGEST.values(), ids=LONGEST)
def test_a_query_of_a_million_characters_takes_bounded_work(tmp_path: Path, query: str) -> None:
    catalog = Traced(tmp_path / "catalog.sqlite")
    put(catalog, *single("apple", "東京", "fig"))
    Traced.statements.clear()
    assert "apple" in {each.passage.text for each in search(catalog, f"apple {query}")}
    assert len(Traced.statements) <= 4 * lexical.ASKED
    assert sum(map(len, Traced.statements)) < 3_000_000
    catalog.close()


def test_a_chunk_of_any_size_is_kept_and_found(catalog: Catalog) -> None:
    long = f"first {'middle ' * 20_000}" + "東" * 50_000 + "x" * 100_000 + " last"
    put(catalog, *single("other", long))
    for query in ("first", "last", "東", "東東"):
        assert len(search(catalog, query)) == 1
    with catalog.change() as change:
        change.delete(["00001"])
    assert search(catalog, "first last 東") == []
