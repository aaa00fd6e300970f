"""What every place of keys and catalogs promises. A test of one inherits it and gives its own `opened`."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from retriever.catalog.check import CatalogReport
from retriever.documents import DocumentPart
from retriever.filter_condition import condition
from service.errors import AccessError
from service.truth.truth import Truth
from tests.retriever.catalogs import document, names, put

Opened = Callable[[str], Truth]  # the same place, as a process on another machine opens it
Damage = Callable[[Truth, str], None]  # runs a statement on the tenant's tables

PARTS = ("a lamp of cedar", DocumentPart("a lamp of oak", metadata={"team": "y"}))
DOCUMENTS = (
    document("d1", *PARTS, title="t", metadata={"n": [1, 2.5], "s": "x" * 2000}),
    document("d2", "another lamp", metadata={"team": "x"}),
)
OF_DOCUMENTS = (
    "DELETE FROM facets WHERE label = 1",
    "UPDATE chunks SET head = 1, tail = 1, nbytes = 1",
    "UPDATE documents SET parts = 9",
    "UPDATE documents SET title = 'u' WHERE id = 'd1'",
)
ROWS = (
    *OF_DOCUMENTS,
    "UPDATE chunks SET uses = 9",
    "UPDATE facts SET value = 99 WHERE name = 'passages'",
    "UPDATE passages SET words = 99 WHERE row = 1",
    "UPDATE passages SET label = 1 WHERE own IS NOT NULL",
)


class TruthContract:
    @pytest.fixture
    def opened(self, tmp_path: Path) -> Iterator[Opened] | Opened:
        raise NotImplementedError

    @pytest.fixture
    def damage(self) -> Damage:
        raise NotImplementedError

    def test_a_point_that_one_keeps_all_bring(self, opened: Opened, tmp_path: Path) -> None:
        one, brought = opened("one"), tmp_path / "brought"
        for text in ("ratio = 0.1\n", "# größer\r\nratio = 0.2\n"):
            (tmp_path / "w1.toml").write_bytes(text.encode())
            one.keep_point(tmp_path / "w1.toml")
            opened("two").bring_points(brought)
            assert {each.name: each.read_bytes() for each in brought.iterdir()} == {"w1.toml": text.encode()}

    def test_one_precomputes_for_a_tenant_but_for_those_that_share_it(self, opened: Opened) -> None:
        one, two = opened("one"), opened("two")
        with one.precompute("a", shared=False), two.precompute("b", shared=False):
            for shared in (True, False):
                with pytest.raises(AccessError, match="another precompute"), two.precompute("a", shared=shared):
                    pass
        with one.precompute("a", shared=True), two.precompute("a", shared=True):
            pass

    def test_a_sound_catalog_is_left_as_it_is(self, opened: Opened) -> None:
        assert filled(opened("one")).check("a") == CatalogReport(2)

    def test_a_document_that_was_not_put_in_is_named(self, opened: Opened, damage: Damage) -> None:
        truth = filled(opened("one"))
        damage(truth, "UPDATE documents SET title = 'u' WHERE id = 'd1'")
        assert truth.check("a").damaged == ("d1",)

    @pytest.mark.parametrize("statement", ROWS)
    def test_what_follows_from_other_rows_is_told_and_left(
        self, statement: str, opened: Opened, damage: Damage
    ) -> None:
        truth = filled(opened("one"))
        damage(truth, statement)
        report = truth.check("a")
        assert report.damaged or report.wrong
        assert truth.check("a") == report

    @pytest.mark.parametrize("statement", OF_DOCUMENTS)
    def test_a_document_that_is_named_is_right_once_it_is_put_in_again(
        self, statement: str, opened: Opened, damage: Damage
    ) -> None:
        truth = filled(opened("one"))
        damage(truth, statement)
        named = truth.check("a").damaged
        catalog = truth.catalog("a")
        put(catalog, *(each for each in DOCUMENTS if each.id in named))
        put(catalog, document("d3", "one more lamp", metadata={"n": 1}))
        assert names(catalog, {"n": 1}) == ["d1", "d3"] and names(catalog, {"team": "x"}) == ["d2"]
        with catalog.view() as view:
            found = [view.lexical(word, condition({"n": 1}), limit=9) for word in ("cedar", "more", "another")]
            assert [[match.passage.document for match in each] for each in found] == [["d1"], ["d3"], []]
        catalog.close()
        assert truth.check("a") == CatalogReport(3)


def filled(truth: Truth) -> Truth:
    catalog = truth.catalog("a")
    put(catalog, *DOCUMENTS)
    catalog.close()
    return truth
