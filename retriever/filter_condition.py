"""Filters on metadata, JSON as vector databases have it, turned into SQL: operators, limits of size and depth.

`{"lang": "en", "year": {"$gte": 2020}, "$or": [{"team": "a"}, {"tags": {"$in": ["x", "y"]}}]}`. A field of an object is
named with dots; of a list each element counts. A field that is absent equals nothing; `$ne`, `$nin` and `$not` hold
wherever their contrary does not. An object and an empty list equal nothing, too, but are there for `$exists`.
"""

import json
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import accumulate
from reprlib import repr as brief
from typing import Final, cast

from retriever.documents import Json
from retriever.errors import FilterError

MOST = 5000  # values in one filter
LONGEST = 200  # comparisons in one filter; each may look at every label
BROADEST = 200  # parts of one $and or $or
DEEPEST = 20

VERSION = 2  # another value: facets of the same metadata may differ
_THERE = b"{}"  # a facet of an object, which no operator but $exists finds

_COMPARED: Final = {"$eq": "=", "$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}
_OPERATORS: Final = (*_COMPARED, "$ne", "$in", "$nin", "$exists")
_EVERY = "SELECT row FROM labels"
_TABLES: Final = (  # the part of a catalog's schema that a condition needs
    "CREATE TABLE labels (row INTEGER PRIMARY KEY, collection TEXT NOT NULL) STRICT",
    "CREATE TABLE facets (field TEXT NOT NULL, value ANY NOT NULL, label INTEGER NOT NULL) STRICT",
)
_BEFORE = re.compile(r"<(\d+)>")

Value = str | int | float | bytes

# Parameters of `IN (…)` as one JSON list, so that there may be any number of them.
LISTED: Final = "(SELECT value FROM json_each(?))"


class ListedValues(str):
    """The parameter of `LISTED`."""

    __slots__ = ()


def listed(values: Sequence[int] | Sequence[str]) -> ListedValues:
    """Makes the parameter. SQLite cuts JSON's texts at NUL and would find others; no id has one, so such go."""
    return ListedValues(json.dumps([value for value in values if not (isinstance(value, str) and "\0" in value)]))


@dataclass(frozen=True, slots=True)
class FilterCondition:
    """SQL that selects the rows of `labels` that fit, and its parameters.

    In `steps` `<n>` stands for the step that is n before. They are named and not put into each other, because
    SQLite's parser gives up where brackets are nested in a few others.
    """

    steps: tuple[str, ...]
    values: tuple[Value, ...] = ()

    @property
    def sql(self) -> str:
        *named, last = [
            _BEFORE.sub(lambda found, at=at: f"f{at - int(found[1])}", step) for at, step in enumerate(self.steps)
        ]
        return f"WITH {', '.join(f'f{at} AS ({step})' for at, step in enumerate(named))} {last}" if named else last

    def __and__(self, other: "FilterCondition") -> "FilterCondition":
        return _joined("INTERSECT", [self, other])

    def __invert__(self) -> "FilterCondition":
        return _contrary(self)


EVERYTHING: Final = FilterCondition((_EVERY,))  # no filter


def in_collection(name: str) -> FilterCondition:
    return FilterCondition(("SELECT row FROM labels WHERE collection = ?",), (_text("collection", name),))


def outside(names: Sequence[str]) -> FilterCondition:
    found = listed([_text("collection", name) for name in names])
    return FilterCondition((f"SELECT row FROM labels WHERE collection NOT IN {LISTED}",), (found,))


def condition(where: Json) -> FilterCondition:
    """The filter as SQL. Raises FilterError, which names what it does not understand."""
    found = _all(where, depth=0)
    if len(found.values) > MOST:
        raise FilterError(f"the filter compares with more than {MOST} values: use a field that says the same in fewer")
    if len(found.steps) > 2 * LONGEST:
        raise FilterError(f"the filter has more than {LONGEST} comparisons: use $in for many values of one field")
    return found


def scope(
    *collections: str, where: Json | None = None, bound: Json | None = None, without: Sequence[str] = ()
) -> FilterCondition:
    """What a request may see: these collections, or all but some; its own filter, and one that its key cannot widen."""
    within = [in_collection(each) for each in collections]
    found = [_joined("UNION", within)] if within else [outside(without)] if without else []
    found += [condition(each) for each in (where, bound) if each]
    first, *others = found or [EVERYTHING]
    for other in others:
        first &= other
    return first


def facets(metadata: Json) -> Iterator[tuple[str, Value]]:
    """Yields what can be compared of a document's metadata: (field, value)."""
    for name, value in metadata.items():
        yield from dict.fromkeys(_facets(name, value))


def fits(found: FilterCondition, *, collection: str, metadata: Json) -> bool:
    """Whether a document with this metadata would match, by the same SQL. Raises FilterError as `facets` does."""
    with closing(sqlite3.connect(":memory:")) as connection:
        for table in _TABLES:
            connection.execute(table)
        connection.execute("INSERT INTO labels VALUES (1, ?)", (_text("collection", collection),))
        connection.executemany("INSERT INTO facets VALUES (?, ?, 1)", facets(metadata))
        return connection.execute(found.sql, found.values).fetchone() is not None


def fields_of(where: Json) -> set[str]:
    """The fields that a filter names, in any part of it."""
    found: set[str] = set()
    for name, value in where.items():
        for part in _parts(name, value):
            found |= fields_of(part)
        if not name.startswith("$"):
            found.add(name)
    return found


def exact_values(where: Json) -> Json:
    """What all documents within a filter have in common: its equalities, by field."""
    found: Json = {}
    for name, value in where.items():
        if name == "$and":
            for part in _parts(name, value):
                found |= exact_values(part)
        elif not name.startswith("$"):
            operators = cast(Json, value) if isinstance(value, Mapping) else {"$eq": value}
            if "$eq" in operators:
                found[name] = operators["$eq"]
    return found


def _parts(name: str, value: object) -> Sequence[Json]:
    """The filters that `$and`, `$or` and `$not` are made of."""
    return cast(Sequence[Json], value if name in ("$and", "$or") else [value] if name == "$not" else ())


def _facets(name: str, value: object) -> Iterator[tuple[str, Value]]:
    if isinstance(value, Mapping):
        yield name, _THERE
        for inner, each in cast(Json, value).items():
            yield from _facets(f"{name}.{inner}", each)
    elif isinstance(value, list | tuple):
        for each in cast(Sequence[object], value):
            yield from _facets(name, each)
    else:
        yield name, _stored(value, name)


def _stored(value: object, name: str) -> Value:
    """The value as the table holds it. True, false and null are unlike every number and text."""
    if value is None or isinstance(value, bool):
        return repr(value).encode()
    if isinstance(value, int):
        return _number(name, value)
    if isinstance(value, str):
        return _text(name, value)
    if isinstance(value, float) and value == value:  # noqa: PLR0124 (NaN is not itself)
        return value
    raise FilterError(f"{name}: {_shown(value)} is neither text, number, true, false nor null")


def _number(name: str, value: int) -> int | float:
    try:
        return value if -(2**63) <= value < 2**63 else float(value)
    except OverflowError as error:
        raise FilterError(f"{name}: a number of {value.bit_length()} bits is too large, write it as text") from error


def _shown(value: object) -> str:
    return brief(value)


def _text(name: str, value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise FilterError(f"{name}: {_shown(value)} has half a character") from error
    return value


def _all(where: object, *, depth: int) -> FilterCondition:
    if not isinstance(where, Mapping):
        raise FilterError(f"a filter is an object such as {{'lang': 'en'}}, got {_shown(where)}")
    if depth > DEEPEST:
        raise FilterError(f"the filter is nested deeper than {DEEPEST}")
    return _joined("INTERSECT", [_one(name, value, depth=depth) for name, value in cast(Json, where).items()])


def _one(name: str, value: object, *, depth: int) -> FilterCondition:
    if name in ("$and", "$or"):
        if not isinstance(value, list) or not value:
            raise FilterError(f"{name} takes a list of filters, got {_shown(cast(object, value))}")
        parts = [_all(each, depth=depth + 1) for each in cast(list[object], value)]
        return _joined("INTERSECT" if name == "$and" else "UNION", parts)
    if name == "$not":
        return _contrary(_all(value, depth=depth + 1))
    if name.startswith("$"):
        raise FilterError(
            f"unknown operator {name}: there are $and, $or, $not, and for a field {', '.join(_OPERATORS)}"
        )
    if isinstance(value, Mapping):
        operators = cast(Json, value)
        if not operators:
            raise FilterError(f"{name}: an object of operators is empty, use one of {', '.join(_OPERATORS)}")
        return _joined("INTERSECT", [_compared(name, each, wanted=wanted) for each, wanted in operators.items()])
    return _compared(name, "$eq", wanted=value)


def _compared(name: str, operator: str, *, wanted: object) -> FilterCondition:
    _text("the name of a field", name)
    match operator:
        case "$exists":
            if not isinstance(wanted, bool):
                raise FilterError(f"{name}: $exists takes true or false, got {_shown(wanted)}")
            found = FilterCondition(("SELECT label FROM facets WHERE facets.field = ?",), (name,))
            return found if wanted else _contrary(found)
        case "$ne":
            return _contrary(_compared(name, "$eq", wanted=wanted))
        case "$nin":
            return _contrary(_compared(name, "$in", wanted=wanted))
        case "$in":
            if not isinstance(wanted, list | tuple):
                raise FilterError(f"{name}: $in takes a list, got {_shown(wanted)}")
            values = [_scalar(name, each) for each in cast(Sequence[object], wanted)]
            marks = ", ".join("?" * len(values)) or "NULL"  # which nothing equals; PostgreSQL takes no empty list
            return FilterCondition(
                (f"SELECT label FROM facets WHERE facets.field = ? AND facets.value IN ({marks})",), (name, *values)
            )
        case _ if operator in _COMPARED:
            value = _scalar(name, wanted)
            if isinstance(value, bytes) and operator != "$eq":
                raise FilterError(f"{name}: {operator} orders numbers and texts, got {_shown(wanted)}")
            kind = _same_kind(operator, value)
            compared = f"facets.value {_COMPARED[operator]} ?{kind}"
            return FilterCondition((f"SELECT label FROM facets WHERE facets.field = ? AND {compared}",), (name, value))
        case _:
            raise FilterError(f"{name}: unknown operator {operator}, use one of {', '.join(_OPERATORS)}")


def _same_kind(operator: str, value: Value) -> str:
    """SQL that compares numbers with numbers and texts with texts; the index orders the ones before the others."""
    if operator == "$eq":
        return ""
    if isinstance(value, str):
        return " AND typeof(facets.value) = 'text'"
    return " AND typeof(facets.value) IN ('integer', 'real')"


def _scalar(name: str, value: object) -> Value:
    if isinstance(value, Mapping | list | tuple):
        raise FilterError(
            f"{name}: {_shown(cast(object, value))} cannot be compared with, use text, a number, true, false or null"
        )
    return _stored(value, name)


def _contrary(found: FilterCondition) -> FilterCondition:
    return FilterCondition((*found.steps, f"{_EVERY} EXCEPT SELECT * FROM <1>"), found.values)


def _joined(how: str, parts: Sequence[FilterCondition]) -> FilterCondition:
    if not parts:
        return EVERYTHING
    if len(parts) == 1:
        return parts[0]
    if len(parts) > BROADEST:
        raise FilterError(f"the filter has {len(parts)} parts side by side, {BROADEST} at most: use $in for one field")
    lengths = accumulate((len(part.steps) for part in reversed(parts[1:])), initial=1)
    joined = f" {how} ".join(f"SELECT * FROM <{back}>" for back in reversed(list(lengths)))
    return FilterCondition(
        (*(step for part in parts for step in part.steps), joined),
        tuple(value for part in parts for value in part.values),
    )
