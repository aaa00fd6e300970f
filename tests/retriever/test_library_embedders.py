"""Embedders of a library: one that follows another, one that fails, and chunks that have no vector."""

import pytest

from retriever.catalog.sqlite import SqliteCatalog
from retriever.errors import EmbeddingError, SearchError
from retriever.filter_condition import in_collection
from retriever.search import Query
from retriever.types import EmbedderEntry
from tests.retriever.fakes import WordEmbedder
from tests.retriever.libraries import Made, document, found, some, texts


def test_a_second_embedder_is_built_beside_the_one_that_serves(catalog: SqliteCatalog, make: Made) -> None:
    old, new = WordEmbedder("old"), WordEmbedder("new", dim=24)
    first = make(old)
    first.put(some(10), collection="c")
    wanted = [hit.passage.id for hit in first.search(Query("heron pearl", 9, "vector"))]
    both = make(new, old)
    assert both.advance(0) == 0
    assert both.advance(12) == 12
    both.put([document("fresh", "a fresh heron", " \n")], collection="c")
    assert [hit.passage.id for hit in both.search(Query("heron pearl", 9, "vector", in_collection("c")))] != []
    assert [
        hit.passage.id for hit in first.search(Query("heron pearl", 30, "vector")) if hit.passage.document != "fresh"
    ][:9] == wanted
    assert [both.advance(12) for _ in range(3)] == [12, 6, 0]
    assert both.advance(12) == 0
    with catalog.view() as view:
        assert view.embedders() == [EmbedderEntry("new", 24, serving=True)]
        rows = view.embedded_after(0, embedder="new", limit=100)
        assert len(rows.chunks) == 31 and rows.vectors.shape == (31, 24)
    assert "a fresh heron" in texts(both.search(Query("fresh heron", 1, "vector")))
    assert len(new.seen) == len(set(new.seen)) == 31


def test_without_the_embedder_that_serves_search_is_by_words_until_the_new_one_does(make: Made) -> None:
    make(WordEmbedder("old")).put(some(5), collection="c")
    library = make(WordEmbedder("new"))
    assert texts(library.search(Query("heron"))) == texts(library.search(Query("heron", mode="lexical")))
    with pytest.raises(SearchError, match="waits: vectors of 0 of 15 chunks"):
        library.search(Query("heron", mode="vector"))
    library.advance(4)
    with pytest.raises(SearchError, match="waits: vectors of 4 of 15 chunks"):
        library.search(Query("heron", mode="hybrid"))
    while library.advance(4):
        pass
    assert len(found(library, "heron", "vector")) == 15


@pytest.mark.parametrize("saved", [False, True])
def test_an_embedder_that_comes_back_has_no_vector_twice(saved: bool, make: Made) -> None:  # noqa: FBT001
    one, two = WordEmbedder("one"), WordEmbedder("two")
    library = make(one, two)
    library.put(some(8), collection="c")
    wanted = texts(library.search(Query("heron", 24, "vector")))
    if saved:
        library.maintain()
    for order in ((two, one), (one, two)):
        other = make(*order)
        while other.advance(100):
            pass
    for again in (library, make(one, two)):
        assert texts(again.search(Query("heron", 24, "vector"))) == wanted


def test_an_embedder_that_another_library_let_go_is_built_again(make: Made) -> None:
    one, two = WordEmbedder("one"), WordEmbedder("two")
    first = make(one)
    first.put(some(8), collection="c")
    second = make(two, one)
    assert second.advance(5) == 5
    assert first.advance(5) == 0
    assert [second.advance(100) for _ in range(4)][-2:] == [0, 0]
    assert len(found(second, "heron", "vector")) == 24


def test_white_space_has_no_vector_and_holds_nothing_up(make: Made) -> None:
    embedder = WordEmbedder()
    library = make(embedder)
    library.put([document("d", " \n\t", "a heron", "", "\u3000")], collection="c")
    assert embedder.seen == ["a heron"]
    assert library.advance(10) == 0
    assert found(library, "heron", "vector") == {"a heron"}
    second = make(WordEmbedder("second"), embedder)
    assert [second.advance(1) for _ in range(2)] == [1, 0]
    with library.catalog.view() as view:
        assert [passage.text for passage in view.passages("d")] == [" \n\t", "a heron", "", "\u3000"]


@pytest.mark.parametrize("way", ["put", "stage"])
def test_an_error_of_the_embedder_leaves_nothing_behind(way: str, catalog: SqliteCatalog, make: Made) -> None:
    embedder = WordEmbedder(refused="poison")
    library = make(embedder)
    library.put([document("d", "a heron")], collection="c")
    with catalog.view() as view:
        before = view.state()
    bad = document("d", "a pearl", "and poison")
    with pytest.raises(EmbeddingError):
        library.put([document("new", "a pearl"), bad], collection="c") if way == "put" else library.stage_all(
            [bad], collection="c"
        )
    with catalog.view() as view:
        assert view.state() == before
    assert found(library, "heron") == {"a heron"}
    with pytest.raises(EmbeddingError):
        library.search(Query("poison"))
    assert found(library, "poison", "lexical") == set()


def test_an_error_while_a_second_embedder_is_built_keeps_what_was_done(catalog: SqliteCatalog, make: Made) -> None:
    library = make(WordEmbedder())
    library.put([*some(4), document("bad", "a heron and poison")], collection="c")
    second = WordEmbedder("second", refused="poison")
    both = make(second, WordEmbedder())
    assert both.advance(12) == 12
    with pytest.raises(EmbeddingError):
        both.advance(12)
    with catalog.view() as view:
        assert len(view.embedded_after(0, embedder="second", limit=100).rows) == 12
    second.refused = ""
    assert [both.advance(12) for _ in range(2)] == [1, 0]


def test_only_what_has_no_vector_yet_is_embedded(make: Made) -> None:
    embedder = WordEmbedder()
    library = make(embedder)
    for _ in range(2):
        library.put([document("a", "a heron", "a pearl", "a heron"), document("b", "a pearl")], collection="c")
        library.put([document("a", "a heron", "a pearl", "a heron", title="another")], collection="c")
    assert embedder.seen == ["a heron", "a pearl"]


def test_a_chunk_that_goes_while_it_is_put_again_has_its_vector(make: Made) -> None:
    embedder = WordEmbedder()
    library = make(embedder)
    library.put([document("a", "a heron")], collection="c")

    def let_go() -> None:
        with library.catalog.change() as change:
            change.delete(["a"])

    embedder.meanwhile = let_go
    library.put([document("b", "a heron", "a pearl")], collection="c")
    assert found(library, "heron", "vector") == {"a heron", "a pearl"}
