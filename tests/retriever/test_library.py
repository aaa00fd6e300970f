"""A library from the outside: what is put is found by words, by vectors and inside a text, or not there at all."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from retriever.catalog.sqlite import SqliteCatalog
from retriever.documents import Document, DocumentPart
from retriever.embedders.embedding import Vector
from retriever.embedders.nearness import nearness
from retriever.errors import SearchError
from retriever.filter_condition import EVERYTHING, condition, in_collection, scope
from retriever.library import Library
from retriever.recognition.recogniser import Recogniser
from retriever.search import BY_WORDS, RARE, Mode, Query, in_prompt_order, with_neighbors
from tests.retriever.fakes import DIM, WordEmbedder
from tests.retriever.libraries import MODES, WORDS, Made, document, found, some, texts


@pytest.mark.parametrize("mode", MODES)
def test_what_is_put_is_found_best_first_until_it_is_replaced_or_deleted(mode: Mode, make: Made) -> None:
    library = make(WordEmbedder())
    library.put(some(30), collection="c")
    library.put(
        [document("bird", "a crane and a heron", "an ember"), document("twin", "a crane and a heron")], collection="c"
    )
    hits = library.search(Query("crane heron", 12, mode))
    assert hits[0].passage.text == "a crane and a heron"
    assert len(hits) == 12 == len({hit.passage.chunk for hit in hits})
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    library.put([document("bird", "an ember", "a knoll")], collection="c")
    assert library.search(Query("crane heron", 1, mode))[0].passage.document == "twin"
    with library.catalog.change() as change:
        change.delete(["twin"])
    assert "a crane and a heron" not in found(library, "crane heron", mode)
    assert "a knoll" in found(library, "knoll", mode)


@pytest.mark.parametrize("mode", MODES)
def test_a_filter_holds_before_anything_is_cut(mode: Mode, make: Made) -> None:
    library = make(WordEmbedder())
    library.put([document(f"n{number}", f"heron {number}", team="red") for number in range(40)], collection="c")
    library.put([document("far", "one heron among other words that say nothing", team="blue")], collection="c")
    library.put([document("else", "heron heron", team="blue")], collection="other")
    only = scope("c", where={"team": {"$ne": "green"}}, bound={"team": "blue"})
    [hit] = library.search(Query("heron", 3, mode, only))
    assert hit.passage.document == "far"


@pytest.mark.parametrize("mode", MODES)
def test_a_staged_version_is_not_found_until_it_serves(mode: Mode, make: Made) -> None:
    library = make(WordEmbedder())
    library.put([document("d", "an old heron here", "what stays")], collection="c")
    [version] = library.stage_all([document("d", "a young heron here", "what stays")], collection="c")
    others = [document(f"s{number}", f"heron heron {number}") for number in range(30)]
    staged = [library.stage_all([other], collection="c")[0] for other in others]
    for _ in range(2):
        assert [hit.passage.text for hit in library.search(Query("heron", 1, mode))] == ["an old heron here"]
        assert library.recognise("a young heron here") == []
        library = make(WordEmbedder())
    with library.catalog.change() as change:
        change.serve(version)
        for each in staged:
            change.drop(each)
    assert [hit.passage.text for hit in library.search(Query("heron", 1, mode))] == ["a young heron here"]
    assert found(library, "heron", mode) <= {"a young heron here", "what stays"}
    assert [each.passage.document for each in library.recognise("an old heron here, a young heron here")] == ["d"]


def test_each_chunk_is_found_once_and_shown_where_the_filter_allows_it(make: Made) -> None:
    library = make(WordEmbedder())
    library.put([document(name, "the very same heron", team=name) for name in ("red", "blue", "green")], collection="c")
    for mode in MODES:
        [hit] = library.search(Query("heron", 10, mode))
        assert hit.passage.text == "the very same heron"
        [hit] = library.search(Query("heron", 10, mode, condition({"team": "blue"})))
        assert hit.passage.document == "blue"
    [seen] = library.recognise("hear the very same heron sing", allowed=condition({"team": "green"}))
    assert (seen.start, seen.end, seen.passage.document) == (5, 24, "green")


def test_hybrid_scores_what_either_finds_by_both(make: Made) -> None:
    embedder = WordEmbedder()
    library = make(embedder)
    library.put(some(25), collection="c")
    question = "heron pearl amber"
    with library.catalog.view() as view:
        shares = {each.passage.id: each.share for each in view.lexical(question, EVERYTHING, limit=1000)}
    hits = library.search(Query(question, 75))
    assert len(hits) == 75 and [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    for hit in hits:
        cosine = float(embedder.passages([hit.passage.text])[0] @ embedder.query(question))
        words = BY_WORDS * nearness(embedder).spread * shares.get(hit.passage.id, 0.0) ** RARE
        assert hit.score == pytest.approx(cosine + words, abs=2e-3), "vectors are kept as halves"
    assert texts(hits[:4]) == texts(library.search(Query(question, 4)))


def test_what_is_no_nearer_than_chance_is_no_find(make: Made) -> None:
    library = make(WordEmbedder())
    library.put(some(25), collection="c")
    for mode in ("vector", "hybrid"):
        near, far = (library.look_for(Query(text, 3, mode)).relevance for text in ("amber heron birch", "zx qw"))
        assert near and far and near.floor == far.floor and near.best > far.best
        own = library.look_for(Query("zx qw", 3, mode, floors={"c": -1.0})).relevance
        assert own and own.is_found and own.best == far.best
        behind = library.look_for(Query("zx qw", 3, mode, in_collection("none"))).relevance
        assert behind and behind.floor < far.floor, "among fewer chunks chance brings less"
    assert library.look_for(Query(" ", 3)).relevance is None
    words = library.look_for(Query("heron unheard unseen unknown", 3, "lexical")).relevance
    assert words and not words.is_found and words.best < words.floor


@pytest.mark.parametrize("mode", MODES)
def test_several_collections_are_searched_as_one_and_a_find_is_above_its_own_floor(mode: Mode, make: Made) -> None:
    library = make(WordEmbedder())
    for name, text in (("one", "heron pearl"), ("two", "heron amber"), ("three", "heron pearl amber")):
        library.put([document(name, text)], collection=name)
    asked = Query("heron pearl", 9, mode, scope("one", "two"))
    one, two = (library.look_for(replace(asked, allowed=scope(name))) for name in ("one", "two"))
    both = library.look_for(asked)
    assert texts(both.hits) == ["heron pearl", "heron amber"] and both.hits == [*one.hits, *two.hits]
    assert both.relevance and one.relevance and both.relevance.best == one.relevance.best
    second = library.look_for(replace(asked, floors={"one": 99.0})).relevance
    assert second and two.relevance and second.best == two.relevance.best and second.floor == both.relevance.floor
    neither = library.look_for(replace(asked, floors={"one": 99.0, "two": 9.0})).relevance
    assert neither and neither.floor == 9.0 and not neither.is_found


class Meaning(WordEmbedder):
    """Takes a question for one about herons, whatever its words are."""

    def query(self, text: str) -> Vector:
        return super().query("heron pearl")


def test_hybrid_is_led_by_rare_words_and_not_by_common_ones(make: Made) -> None:
    library = make(Meaning())
    said = [f"how is it that the {word} is in the {number}" for number in range(9) for word in WORDS]
    library.put([document("d", "heron pearl", "the error EX_NOPERM", *said)], collection="c")
    assert texts(library.search(Query("how is it that the bird is in", 1))) == ["heron pearl"]
    assert texts(library.search(Query("EX_NOPERM", 1))) == ["the error EX_NOPERM"]


def test_a_reranker_orders_the_best_again_and_leaves_the_others_behind_them(make: Made) -> None:
    library = make(WordEmbedder())
    library.put(some(25), collection="c")
    for mode in MODES:
        plain = texts(library.search(Query("heron pearl", 9, mode)))
        again = texts(library.search(Query("heron pearl", 9, mode, reranked=5)))
        assert again == [*sorted(plain[:5], key=len, reverse=True), *plain[5:]]
        deep = texts(library.search(Query("heron pearl", 2, mode, reranked=9)))
        assert deep == sorted(plain, key=len, reverse=True)[:2]


def test_neighbors_stand_around_their_hit_in_the_order_of_the_document(make: Made) -> None:
    library = make(WordEmbedder())
    library.put([document("long", *(f"place {number}" for number in range(9)), "a heron", "the end")], collection="c")
    library.put([document("short", "a start", "heron heron heron")], collection="c")
    hits = library.search(Query("heron", 2, "lexical"))
    with library.catalog.view() as view:
        around = with_neighbors(view, hits, before=2, after=5, allowed=EVERYTHING)
        assert with_neighbors(view, hits, before=0, after=0, allowed=EVERYTHING) == hits
    assert texts(in_prompt_order(around)) == [
        *("a start", "heron heron heron"),
        *("place 7", "place 8", "a heron", "the end"),
    ]
    assert len({hit.passage.chunk for hit in around}) == len(around)
    assert {hit.score for hit in around} == {hit.score for hit in hits}


def test_neighbors_that_the_filter_does_not_let_through_stay_away(make: Made) -> None:
    library = make()
    parts = (DocumentPart("a heron"), DocumentPart("a secret", metadata={"level": 9}), DocumentPart("a pearl"))
    library.put([Document("d", parts, metadata={"level": 1})], collection="c")
    allowed = condition({"level": {"$lt": 5}})
    hits = library.search(Query("heron", allowed=allowed))
    with library.catalog.view() as view:
        around = with_neighbors(view, hits, before=3, after=3, allowed=allowed)
    assert texts(around) == ["a heron", "a pearl"]


def test_chunks_are_recognised_under_filters_and_as_documents_change(make: Made) -> None:
    library = make()
    prompt = "Use this: the heron stands in the inlet. And: the pearl lies in the ocean. Thanks."
    library.put([document("a", "the heron stands in the inlet.", team="red")], collection="c")
    library.put([document("b", " the pearl lies in the ocean.\n", team="blue")], collection="d")

    def seen(allowed: object = EVERYTHING) -> list[str]:
        marks = library.recognise(prompt, allowed=allowed)  # pyright: ignore[reportArgumentType]
        assert all(prompt[each.start : each.end] == each.passage.text.strip() for each in marks)
        return [each.passage.document for each in marks]

    assert seen() == ["a", "b"]
    assert seen(condition({"team": "blue"})) == ["b"]
    assert seen(in_collection("c")) == ["a"]
    library.put([document("b", "the pearl is gone from the ocean", team="blue")], collection="d")
    assert seen() == ["a"]
    library.put([document("c", "the pearl lies in the ocean.", "the heron stands in the inlet.")], collection="c")
    assert seen() == ["a", "c"]
    with library.catalog.change() as change:
        change.delete(["a"])
    assert seen() == ["c", "c"]
    with library.catalog.change() as change:
        change.patch("c", metadata={"team": "blue"})
    assert seen(condition({"team": "blue"})) == ["c", "c"]
    with library.catalog.change() as change:
        change.delete_collection("c")
    assert seen() == []


def test_recognising_in_a_view_is_not_disturbed_by_one_that_sees_more(catalog: SqliteCatalog, make: Made) -> None:
    library, recogniser = make(), Recogniser()
    old, new = "the heron stands in the inlet.", "the pearl lies in the ocean."
    library.put([document("d", old)], collection="c")

    class Interrupting(str):
        """The text of a search during which another one sees a later state."""

        def encode(self, *how: str) -> bytes:  # pyright: ignore[reportIncompatibleMethodOverride]
            library.put([document("d", new)], collection="c")
            with catalog.view() as later:
                assert [each.passage.text for each in recogniser.find(later, new, allowed=EVERYTHING)] == [new]
            return str(self).encode(*how)

    with catalog.view() as view:
        [each] = recogniser.find(view, Interrupting(f"{old} {new}"), allowed=EVERYTHING)
        assert each.passage.text == old


@pytest.mark.parametrize("mode", [None, *MODES])
@pytest.mark.parametrize("text", ["", " \n", "?!", "\0", '" OR (', "NEAR(", "\ud800", "東", "a" * 100_000])
def test_any_text_can_be_asked_for(text: str, mode: Mode | None, make: Made) -> None:
    library = make(WordEmbedder())
    library.put(some(5), collection="c")
    hits = library.search(Query(text, 4, mode))
    by_vectors = mode != "lexical" and text.strip()
    assert len(hits) == (4 if by_vectors else 0)
    assert library.recognise(text) == []


def test_a_huge_question_finds_what_its_words_are_in(make: Made) -> None:
    library = make()
    library.put(some(20), collection="c")
    question = " ".join(f"word{number}" for number in reversed(range(20_000)))
    assert library.search(Query(question)) == []
    library.put([document("d", "here is word19999 and a heron")], collection="c")
    assert texts(library.search(Query(question))) == ["here is word19999 and a heron"]
    assert len(library.search(Query(f"{' '.join(WORDS)} {question}", 50))) == 50


@pytest.mark.parametrize(("limit", "reranked"), [(-1, 0), (1001, 0), (1, -1), (1, 1001)])
def test_too_many_hits_are_refused(limit: int, reranked: int, make: Made) -> None:
    with pytest.raises(SearchError, match="1000"):
        make().search(Query("heron", limit, reranked=reranked))


def test_no_hits_can_be_asked_for(make: Made) -> None:
    library = make(WordEmbedder())
    assert library.search(Query("heron")) == []
    library.put(some(3), collection="c")
    assert all(library.search(Query("heron", 0, mode, reranked=each)) == [] for mode in MODES for each in (0, 5))


def test_what_is_not_there_cannot_be_asked_for(catalog: SqliteCatalog, tmp_path: Path) -> None:
    library = Library(catalog, tmp_path / "index")
    for mode in ("vector", "hybrid"):
        with pytest.raises(SearchError, match="embedder"):
            library.search(Query("heron", mode=mode))
    with pytest.raises(SearchError, match="reranker"):
        library.search(Query("heron", reranked=3))
    library.maintain()
    assert library.advance(10) == 0


def test_a_library_that_is_opened_again_finds_the_same(make: Made, tmp_path: Path) -> None:
    library = make(WordEmbedder())
    library.put(some(30), collection="c")
    library.maintain()
    assert list((tmp_path / "index").glob("*.faiss"))
    library.put(some(10, seed=1), collection="c")
    for mode in MODES:
        again = make(WordEmbedder())
        assert texts(again.search(Query("heron pearl", 20, mode))) == texts(
            library.search(Query("heron pearl", 20, mode))
        )
    assert WordEmbedder().dim == DIM


@pytest.mark.parametrize("then", [[document("d", "a young heron")], []])
def test_an_older_view_finds_its_words_whatever_a_later_one_has_read(
    then: list[Document], catalog: SqliteCatalog, make: Made
) -> None:
    library = make()
    library.put([document("d", "an old heron"), document("e", "and a heron")], collection="c")
    with catalog.view() as view:
        before = view.state()
        with catalog.change() as change:
            change.delete(["d"])
            change.put(then, collection="c")
        assert found(library, "heron") == {"and a heron", *(part.text for each in then for part in each.parts)}
        assert {each.passage.text for each in view.lexical("heron", EVERYTHING, limit=9)} == {
            "an old heron",
            "and a heron",
        }
        assert view.state() == before


def test_what_a_moved_row_left_in_a_page_goes_with_what_was_deleted(tmp_path: Path) -> None:
    """SQLite overwrites what it deletes, but not always what it moves: a copy may stay where no row is any more."""
    path = tmp_path / "catalog.sqlite"

    def changed(*deleted: str, documents: Sequence[Document] = ()) -> bytes:
        catalog = SqliteCatalog(path)
        library = Library(catalog, tmp_path / "index")
        library.put(documents, collection="c")
        with catalog.change() as change:
            change.delete(deleted)
        library.maintain()
        assert catalog.empty_log()
        catalog.close()
        return path.read_bytes()

    content = bytearray(changed(documents=some(20)))
    pages = range(0, len(content), 4096)
    leaf = next(page for page in pages if content[page] == 13 and content[page + 200 : page + 800] == bytes(600))
    content[leaf + 500 : leaf + 508] = b"4711mark"
    path.write_bytes(content)
    assert b"4711mark" in changed()
    assert b"4711mark" not in changed("d3")
    with closing(SqliteCatalog(path)) as catalog:
        left = found(Library(catalog, tmp_path / "index"), "heron amber")
    assert left and not [text for text in left if " 3 " in text]
