"""Filters on metadata: LangChain's structured queries in kvweave's form. Compares nothing itself."""

from collections.abc import Mapping
from typing import Any, Final, cast

from langchain_core.structured_query import (
    Comparator,
    Comparison,
    FilterDirective,
    Operation,
    Operator,
    StructuredQuery,
    Visitor,
)

from kvweave_client.options import Json
from kvweave_client.plain import plain_metadata

Options = dict[str, Any]  # of a search, by their names

COMPARATORS: Final = (
    Comparator.EQ,
    Comparator.NE,
    Comparator.GT,
    Comparator.GTE,
    Comparator.LT,
    Comparator.LTE,
    Comparator.IN,
    Comparator.NIN,
)


class KVWeaveTranslator(Visitor):
    """Makes a filter of a structured query. Of a list each element counts, so `eq` also says that a list contains."""

    allowed_comparators = COMPARATORS
    allowed_operators = (Operator.AND, Operator.OR, Operator.NOT)

    def visit_operation(self, operation: Operation) -> Json:
        """Makes a filter of an operation: and, or, not."""
        parts = [cast(Json, each.accept(self)) for each in operation.arguments]
        if not parts:
            raise ValueError(f"{operation.operator.value!r} is said of nothing: give it arguments")
        if operation.operator is Operator.NOT:
            return {"$not": parts[0] if len(parts) == 1 else {"$and": parts}}
        return {f"${operation.operator.value}": parts}

    def visit_comparison(self, comparison: Comparison) -> Json:
        """Makes a filter of one field with one value, or with several."""
        if comparison.comparator not in COMPARATORS:
            known = ", ".join(each.value for each in COMPARATORS)
            raise ValueError(
                f"kvweave does not compare by {comparison.comparator.value!r}, but by {known}: "
                "of a list each element counts, so eq says that it contains"
            )
        value = _value(comparison.value)
        if comparison.comparator in (Comparator.IN, Comparator.NIN) and not isinstance(value, list):
            value = [value]
        return {comparison.attribute: {f"${comparison.comparator.value}": value}}

    def visit_structured_query(self, structured_query: StructuredQuery) -> tuple[str, Options]:
        """What to look for, and the options of the search."""
        options: Options = {}
        if structured_query.filter is not None:
            options["filter"] = structured_query.filter.accept(self)
        if structured_query.limit is not None:
            options["k"] = structured_query.limit
        return structured_query.query, options


def filter_of(given: object) -> Json | None:
    """The filter in kvweave's form; None for no filter."""
    if isinstance(given, StructuredQuery):
        given = given.filter
    if given is None:
        return None
    if isinstance(given, FilterDirective):
        return cast(Json, given.accept(KVWeaveTranslator()))
    if not isinstance(given, Mapping):
        raise TypeError(f"a filter is an object such as {{'lang': 'en'}}, got {type(given).__name__}")
    return plain_metadata(cast(Mapping[str, object], given))


def _value(given: object) -> object:
    """A value as documents hold it: query constructors say dates as objects, documents hold them as ISO text."""
    if isinstance(given, Mapping):
        told = cast(Mapping[str, object], given)
        given = told.get(str(told.get("type")), told)
    return plain_metadata({"value": given})["value"]
