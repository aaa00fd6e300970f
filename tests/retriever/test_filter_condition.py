"""Filters against a naive evaluation in Python, and against people who want to break them."""

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retriever.catalog import schema
from retriever.documents import Json
from retriever.errors import FilterError
from retriever.filter_condition import (
    BROADEST,
    DEEPEST,
    EVERYTHING,
    MOST,
    FilterCondition,
    condition,
    exact_values,
    facets,
    fields_of,
    fits,
    in_collection,
    scope,
)

# Numbers beside each other where floats cannot tell them apart, texts that look like numbers and like SQL.
SCALARS = (
    *(
        *(0, 1, -1, 2, 1.0, 1.5, -0.0, 0.1, 1e308, 2**53, 2**53 + 1, float(2**53), 2**63 - 1, -(2**63), 2**63),
        *(2**64, 2**70),
    ),
    *("", "1", "1.0", "a", "A", "b", "ä", "true", "null", "x' OR '1'='1", "%", "_", "a\0b", "🙂", "True", "None"),
    *(True, False, None),
)
FIELDS = ("a", "b", "a.b", "b.a", "c'; DROP TABLE labels; --", "?", "", "field", "A")

THERE = object()  # is there, and equals nothing

scalars = st.sampled_from(SCALARS)
fields = st.sampled_from(FIELDS)
metadata = st.dictionaries(
    fields,
    st.recursive(
        scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(fields, inner, max_size=2), max_leaves=5
    ),
    max_size=4,
)


def compared(field: st.SearchStrategy[str]) -> st.SearchStrategy[Json]:
    ordered = st.dictionaries(
        st.sampled_from(["$gt", "$gte", "$lt", "$lte"]),
        scalars.filter(lambda value: value is not None and not isinstance(value, bool)),
        min_size=1,
        max_size=2,
    )
    equal = st.dictionaries(st.sampled_from(["$eq", "$ne"]), scalars, min_size=1)
    among = st.dictionaries(st.sampled_from(["$in", "$nin"]), st.lists(scalars, max_size=4), min_size=1, max_size=1)
    there = st.fixed_dictionaries({"$exists": st.booleans()})
    both = st.tuples(equal, among, ordered).map(lambda each: {**each[0], **each[1], **each[2]})
    return st.dictionaries(field, scalars | ordered | equal | among | there | both, max_size=3)


filters = st.recursive(
    compared(fields),
    lambda inner: (
        st.fixed_dictionaries({"$and": st.lists(inner, min_size=1, max_size=3)})
        | st.fixed_dictionaries({"$or": st.lists(inner, min_size=1, max_size=3)}, optional={"a": scalars})
        | st.fixed_dictionaries({"$not": inner}, optional={"b": scalars})
    ),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def tables() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        schema.prepare(connection)
        yield connection


def filled(tables: sqlite3.Connection, *labels: Json) -> None:
    """Label n has the nth metadata."""
    for table in ("labels", "facets"):
        tables.execute(f"DELETE FROM {table}")
    for row, each in enumerate(labels):
        collection = "even" if row % 2 == 0 else "odd"
        tables.execute("INSERT INTO labels VALUES (?, ?, ?)", (row, collection, json.dumps(each)))
        tables.executemany(
            "INSERT OR IGNORE INTO facets VALUES (?, ?, ?)", [(field, value, row) for field, value in facets(each)]
        )


def selected(tables: sqlite3.Connection, allowed: FilterCondition) -> set[int]:
    """As a catalog asks: behind another condition, and in brackets."""
    return {row for (row,) in tables.execute(f"SELECT row FROM labels WHERE row IN ({allowed.sql})", allowed.values)}


def flat(name: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        yield name, THERE
    if isinstance(value, Mapping):
        for inner, each in value.items():
            yield from flat(f"{name}.{inner}", each)
    elif isinstance(value, list):
        for each in value:
            yield from flat(name, each)
    else:
        yield name, value


def same(one: object, other: object) -> bool:
    """True is not 1. Numbers beyond 64 bits are as near as a float is."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return kept(one) == kept(other)


def kept(value: object) -> object:
    return float(value) if isinstance(value, int) and not -(2**63) <= value < 2**63 else value


ORDERS: dict[str, Callable[[object, object], bool]] = {
    "$gt": lambda one, other: one > other,  # type: ignore[operator]
    "$gte": lambda one, other: one >= other,  # type: ignore[operator]
    "$lt": lambda one, other: one < other,  # type: ignore[operator]
    "$lte": lambda one, other: one <= other,  # type: ignore[operator]
}


def is_ordered(one: object, other: object, *, operator: str) -> bool:
    """Texts by their bytes, numbers by value; nothing else has an order."""
    if isinstance(one, str) and isinstance(other, str):
        return ORDERS[operator](one.encode(), other.encode())
    if any(isinstance(each, bool) or not isinstance(each, int | float) for each in (one, other)):
        return False
    return ORDERS[operator](kept(one), kept(other))


def holds(where: Json, told: Json) -> bool:
    """The naive evaluation."""
    return all(holds_one(name, wanted, told) for name, wanted in where.items())


def holds_one(name: str, wanted: object, told: Json) -> bool:
    if name == "$and":
        return all(holds(each, told) for each in cast(list[Json], wanted))
    if name == "$or":
        return any(holds(each, told) for each in cast(list[Json], wanted))
    if name == "$not":
        return not holds(cast(Json, wanted), told)
    values = [value for outer, each in told.items() for field, value in flat(outer, each) if field == name]
    operators = cast(Json, wanted) if isinstance(wanted, Mapping) else {"$eq": wanted}
    return all(compares(operator, operand, values) for operator, operand in operators.items())


def compares(operator: str, operand: object, values: list[object]) -> bool:
    match operator:
        case "$eq":
            return any(same(value, operand) for value in values)
        case "$in":
            return any(same(value, each) for value in values for each in cast(list[object], operand))
        case "$ne" | "$nin":
            return not compares({"$ne": "$eq", "$nin": "$in"}[operator], operand, values)
        case "$exists":
            return bool(values) == operand
        case _:
            return any(is_ordered(value, operand, operator=operator) for value in values)


@pytest.mark.parametrize(("examples", "most"), [(300, 6), pytest.param(3000, 8, marks=pytest.mark.long)])
def test_a_filter_keeps_what_a_naive_evaluation_keeps(tables: sqlite3.Connection, examples: int, most: int) -> None:
    @given(st.lists(metadata, max_size=most), filters)
    @settings(max_examples=examples, deadline=None)
    def check(labels: list[Json], where: Json) -> None:
        filled(tables, *labels)
        wanted = {row for row, each in enumerate(labels) if holds(where, each)}
        assert selected(tables, condition(where)) == wanted
        assert selected(tables, condition(json.loads(json.dumps(where)))) == wanted
        assert selected(tables, condition({"$not": where})) == set(range(len(labels))) - wanted
        assert selected(tables, condition(where) & in_collection("even")) == {row for row in wanted if row % 2 == 0}

    check()


@given(told=metadata, where=filters, collection=st.sampled_from(["c", "d", "", "a\0b"]))
@settings(max_examples=200, deadline=None)
def test_whether_a_document_would_fit_is_told_as_a_naive_evaluation_tells(
    told: Json, where: Json, collection: str
) -> None:
    assert fits(EVERYTHING, collection=collection, metadata=told)
    assert fits(condition(where), collection=collection, metadata=told) == holds(where, told)
    within = in_collection("c") & condition(where)
    assert fits(within, collection=collection, metadata=told) == (collection == "c" and holds(where, told))


@pytest.mark.parametrize(
    ("metadata", "collection"), [({"n": float("nan")}, "c"), ({"s": "\ud800"}, "c"), ({}, "half \ud800")]
)
def test_what_no_catalog_keeps_fits_nothing_and_is_refused(metadata: Json, collection: str) -> None:
    with pytest.raises(FilterError):
        fits(EVERYTHING, collection=collection, metadata=metadata)


def test_every_operator_agrees_with_the_naive_one_on_every_pair_of_values(tables: sqlite3.Connection) -> None:
    labels = [{"a": value} for value in SCALARS] + [{"a": [value, "z"]} for value in SCALARS] + [{"b": 1}]
    filled(tables, *labels)
    for operand in SCALARS:
        ordered = () if operand is None or isinstance(operand, bool) else ORDERS
        for where in ({operator: operand} for operator in ("$eq", "$ne", *ordered)):
            wanted = {row for row, each in enumerate(labels) if holds({"a": where}, each)}
            assert selected(tables, condition({"a": where})) == wanted, where


def test_conditions_hold_together_however_they_are_joined(tables: sqlite3.Connection) -> None:
    filled(tables, *({"n": number, "m": number % 3} for number in range(12)))
    one, two = condition({"$or": [{"n": {"$lt": 3}}, {"n": {"$gt": 8}}]}), condition({"$not": {"m": 1}})
    wanted = selected(tables, one) & selected(tables, two) & selected(tables, in_collection("odd"))
    assert wanted == {9, 11}
    for joined in (
        one & two & in_collection("odd"),
        in_collection("odd") & (two & one),
        (one & one) & (two & in_collection("odd")),
    ):
        assert selected(tables, joined) == wanted
        assert selected(tables, joined & EVERYTHING) == wanted


def test_a_request_cannot_widen_the_filter_of_its_key(tables: sqlite3.Connection) -> None:
    filled(tables, *({"team": team, "n": number} for number in range(4) for team in "ab"))
    bound = {"team": "a"}
    allowed = selected(tables, scope(bound=bound))
    attempts: list[Json] = [
        {"$or": [{"team": "b"}, {"n": {"$gte": 0}}]}, {"$not": {"team": "a"}}, {"team": {"$exists": True}},
        {"team": {"$ne": "a"}}, {"$not": {"$and": [{"n": 99}]}}, {"team": "a"}, {},
    ]  # fmt: skip
    for where in attempts:
        assert selected(tables, scope(where=where, bound=bound)) <= allowed
        assert selected(tables, scope("odd", where=where, bound=bound)) <= selected(tables, in_collection("odd"))
    assert allowed == {0, 2, 4, 6}


# Hostile ones


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ([], "a filter is an object"),
        ("lang = 'en'", "a filter is an object"),
        (None, "a filter is an object"),
        ({"$where": "1"}, r"unknown operator \$where"),
        ({"$": 1}, r"unknown operator \$"),
        ({"a": {"$regex": ".*"}}, r"a: unknown operator \$regex"),
        ({"a": {"$and": []}}, r"a: unknown operator \$and"),
        ({"a": {"b": 1}}, "a: unknown operator b"),
        ({"a": {}}, "a: an object of operators is empty"),
        ({"$and": []}, r"\$and takes a list"),
        ({"$and": {}}, r"\$and takes a list"),
        ({"$or": "ab"}, r"\$or takes a list"),
        ({"$or": [1]}, "a filter is an object"),
        ({"$not": [{"a": 1}]}, "a filter is an object"),
        ({"a": [1]}, "a: .* cannot be compared with"),
        ({"a": {"$eq": {}}}, "a: .* cannot be compared with"),
        ({"a": {"$in": 1}}, r"a: \$in takes a list"),
        ({"a": {"$nin": "text"}}, r"a: \$in takes a list"),
        ({"a": {"$in": [[1]]}}, "a: .* cannot be compared with"),
        ({"a": {"$exists": 1}}, r"a: \$exists takes true or false"),
        ({"a": {"$gt": True}}, r"a: \$gt orders numbers and texts"),
        ({"a": {"$lte": None}}, r"a: \$lte orders numbers and texts"),
        ({"a": float("nan")}, "a: nan is neither"),
        ({"a": {"$in": [float("nan")]}}, "a: nan is neither"),
        ({"a": 10**400}, "a: a number of 1329 bits is too large"),
        ({"a": {"$lt": -(10**400)}}, "a: a number of 1329 bits is too large"),
        ({"a": "half \ud800"}, "a: .* has half a character"),
        ({"half \ud800": 1}, "has half a character"),
        ({"a": b"True"}, "a: .* is neither"),
        ({"a": object()}, "a: .* is neither"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(where: object, told: str) -> None:
    with pytest.raises(FilterError, match=told):
        condition(cast(Json, where))


def nested(depth: int, around: Callable[[Json], Json]) -> Json:
    where: Json = {"n": {"$nin": [5], "$ne": 4}}
    for _ in range(depth):
        where = around(where)
    return where


NESTINGS: tuple[Callable[[Json], Json], ...] = (
    lambda inner: {"$not": inner},
    lambda inner: {"$and": [inner, {"n": 3}]},
    lambda inner: {"$or": [{"n": 3}, inner]},
    lambda inner: {"n": {"$ne": 5, "$exists": True}, "$not": inner},
)


@pytest.mark.parametrize("around", NESTINGS)
def test_nesting_is_answered_up_to_the_deepest_and_refused_beyond(
    tables: sqlite3.Connection, around: Callable[[Json], Json]
) -> None:
    filled(tables, {"n": 3}, {"n": 4}, {"n": 5}, {})
    deep = nested(DEEPEST, around)
    wanted = {row for row, each in enumerate([{"n": 3}, {"n": 4}, {"n": 5}, {}]) if holds(deep, each)}
    assert selected(tables, condition(deep)) == wanted
    assert selected(tables, scope("even", where=deep, bound=deep)) == {row for row in wanted if row % 2 == 0}
    for deeper in (DEEPEST + 1, 400):
        with pytest.raises(FilterError, match=f"deeper than {DEEPEST}"):
            condition(nested(deeper, around))


def test_values_and_parts_are_answered_up_to_the_most_and_refused_beyond(tables: sqlite3.Connection) -> None:
    filled(tables, *({"n": number} for number in range(5)))
    assert selected(tables, condition({"n": {"$in": list(range(3, MOST + 2))}})) == {3, 4}
    assert selected(tables, condition({"$or": [{"n": number + 3} for number in range(BROADEST)]})) == {3, 4}
    one = condition({"$or": [{"n": number} for number in range(BROADEST)]})
    assert selected(tables, one & one & condition({"n": {"$nin": list(range(1, MOST))}}) & in_collection("even")) == {0}
    too_many: list[Json] = [
        {"n": {"$in": list(range(MOST))}},
        {"$or": [{"n": number} for number in range(BROADEST + 1)]},
        {f"n{number}": 1 for number in range(BROADEST + 1)},
        {"$or": [{"$or": [{}] * BROADEST}] * BROADEST},
        {"$and": [{"n": {"$in": list(range(MOST // 2))}}] * 2},
    ]
    for where in too_many:
        with pytest.raises(FilterError, match=r"at most|more than"):
            condition(where)


def test_a_refusal_is_one_line_however_much_was_asked() -> None:
    deep: object = 1
    for _ in range(900):
        deep = [deep]
    for value in (deep, ["x" * 1_000_000], {"$eq": {"x": "y" * 1_000_000}}, {"$in": "x" * 1_000_000}):
        with pytest.raises(FilterError) as refused:
            condition({"a": value})
        assert len(str(refused.value)) < 500


def test_a_filter_tells_its_fields_and_what_all_within_it_have_in_common() -> None:
    where = {"a": 1, "b": {"$eq": "x", "$exists": True}, "$and": [{"c.d": True}, {"e": {"$gt": 1}}]}
    beside = {"$or": [{"f": 1}, {"$not": {"g": 2}}], "$not": {"h": 3}, "i": {"$in": [1]}}
    assert exact_values({**where, **beside}) == {"a": 1, "b": "x", "c.d": True}
    assert fields_of({**where, **beside}) == {"a", "b", "c.d", "e", "f", "g", "h", "i"}
    assert not fits(~condition(where), collection="c", metadata={"a": 1, "b": "x", "c": {"d": True}, "e": 2})
