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
from langchain_core.documents import Document

from kvweave_client import batches
from kvweave_client.following import LARGEST, MOST
from kvweave_client.passages import PREFIX
from langchain_kvweave.entries import entries
from langchain_kvweave.plain import plain_metadata, plain_text

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
    st.sampled_from([np.ndarray, np.float32(2.5), np.arange(3), Decimal]),
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT | st.integers(), inner, max_size=3)
)


class Colour(Enum):
    RED = "red"


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


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", "c", "d", None]), st.sampled_from(["x", "y", " \n", "z\0"])), max_size=9
    )
)
def test_of_each_id_the_last_is_kept(given_: list[tuple[str | None, str]]) -> None:
    items = [Document(text, id=name) for name, text in given_]
    made = entries(items, collection="c")
    last = dict(zip(made.ids, (plain_text(text) for _, text in given_), strict=True))
    sent = {chunk.get("id"): chunk["text"] for each in made.documents for chunk in each.get("chunks", [])}
    assert sent == {name: text for name, text in last.items() if text.strip()}
    assert set(made.blank) == last.keys() - sent.keys()
    assert [each.get("id") for each in made.documents] == [f"c/{name}" for name in last if name in sent]


def test_documents_without_an_id_are_the_same_when_they_say_the_same() -> None:
    first, again, other = (Document("x", metadata={"n": n}) for n in (1, 1, 2))
    ids = entries([first, again, other], collection="c").ids
    assert ids[0] == ids[1] != ids[2]


def test_requests_stay_small_and_hold_every_document_once() -> None:
    many = [Document("word", id=str(number)) for number in range(2 * MOST + 1)]
    large = [Document("x" * (LARGEST // 3), id=f"large {number}") for number in range(7)]
    requests = list(batches(entries([*many, *large], collection="c").documents))
    assert all(len(request) <= MOST and len(json.dumps(request)) <= LARGEST * 1.01 for request in requests)
    assert [each.get("id") for request in requests for each in request] == [f"c/{each.id}" for each in [*many, *large]]


def test_names_of_this_package_are_no_metadata_of_a_user() -> None:
    found = Document("x", id="1", metadata={"mine": 1, f"{PREFIX}score": 0.5})
    [entry] = entries([found], collection="c").documents
    assert entry.get("metadata") == {"mine": 1}
