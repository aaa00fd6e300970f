"""What goes over the wire is text and JSON, whatever people keep in their documents."""

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from kvweave_client.plain import plain_metadata, plain_text

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=20)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    ANY_TEXT,
    st.binary(max_size=8),
    st.dates(),
    st.datetimes(),
    st.timedeltas(),
    st.uuids(),
    st.decimals(),
    st.fractions(),
    st.complex_numbers(),
    st.frozensets(st.integers() | st.text(max_size=3), max_size=4),
    st.sampled_from([np.ndarray, np.float32(2.5), np.bool_(True), np.str_("s"), np.arange(3), Decimal]),
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT | st.integers(), inner, max_size=3)
)


class Colour(Enum):
    RED = "red"


class Place(BaseModel):
    page: int
    around: list[float]


@given(st.dictionaries(ANY_TEXT, VALUES, max_size=4))
def test_all_metadata_becomes_json_that_stays_as_it_is(metadata: dict[str, object]) -> None:
    plain = plain_metadata(metadata)
    assert json.loads(json.dumps(plain, allow_nan=False).encode()) == plain
    assert plain_metadata(plain) == plain


def test_values_keep_what_filters_compare() -> None:
    metadata: dict[Any, object] = {
        "day": date(2024, 2, 29),
        "at": datetime(2024, 2, 29, 12, tzinfo=UTC),
        "took": timedelta(minutes=1),
        "price": Decimal("9.50"),
        "id": UUID(int=7),
        "path": PurePosixPath("a/b"),
        "tags": {"y", "x"},
        "count": np.int64(3),
        "score": np.float32(0.5),
        "scores": np.array([[1, 2], [3, 4]]),
        "colour": Colour.RED,
        "day of numpy": np.datetime64("2025-03-01"),
        "place": Place(page=3, around=[0.5, float("inf")]),
        "huge": 2**70,
        "missing": float("nan"),
        7: True,
    }
    assert plain_metadata(metadata) == {
        "day": "2024-02-29",
        "at": "2024-02-29T12:00:00+00:00",
        "took": 60.0,
        "price": 9.5,
        "id": "00000000-0000-0000-0000-000000000007",
        "path": "a/b",
        "tags": ["x", "y"],
        "count": 3,
        "score": 0.5,
        "scores": [[1, 2], [3, 4]],
        "colour": "red",
        "day of numpy": "2025-03-01",
        "place": {"page": 3, "around": [0.5, "inf"]},
        "huge": 2**70,
        "missing": "nan",
        "7": True,
    }


def test_what_holds_itself_has_an_end() -> None:
    around: list[object] = [1]
    around += [around, {"again": around}]
    deep: list[object] = []
    for _ in range(500):
        deep = [deep]
    json.dumps(plain_metadata({"around": around, "deep": deep}))


@given(ANY_TEXT)
def test_text_is_changed_only_where_it_cannot_be_sent(text: str) -> None:
    plain = plain_text(text)
    assert ("\0" not in plain and plain.encode() and plain_text(plain) == plain) or not plain
    if "\0" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text):
        assert plain == text
