"""What a search by words tells of texts that its asker may not see: nothing, by what is found nor by any number."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from retriever.catalog.sqlite import SqliteCatalog
from retriever.filter_condition import EVERYTHING, in_collection
from tests.retriever.test_lexical import corpus, put, queries


def test_within_a_bound_all_is_as_if_nothing_else_were_there(tmp_path: Path) -> None:
    """Scores, shares and order, while foreign documents come and go, some of them not serving yet."""
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
