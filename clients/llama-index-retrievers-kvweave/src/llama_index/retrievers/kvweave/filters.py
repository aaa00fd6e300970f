"""LlamaIndex's filters on metadata in kvweave's form. Knows neither nodes nor the service."""

from collections.abc import Mapping
from typing import Final

from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

from kvweave_client.options import Json

_COMPARED: Final = {
    FilterOperator.EQ: "$eq",
    FilterOperator.NE: "$ne",
    FilterOperator.GT: "$gt",
    FilterOperator.GTE: "$gte",
    FilterOperator.LT: "$lt",
    FilterOperator.LTE: "$lte",
    FilterOperator.CONTAINS: "$eq",  # of a list each element counts
}
_LISTED: Final = {FilterOperator.IN: "$in", FilterOperator.NIN: "$nin", FilterOperator.ANY: "$in"}
_JOINED: Final = {FilterCondition.AND: "$and", FilterCondition.OR: "$or", FilterCondition.NOT: "$or"}

Filters = MetadataFilters | Mapping[str, object]


def where(filters: Filters | None) -> Json | None:
    """The filter in kvweave's form; None where everything fits. A dict is in that form already, and stays as it is."""
    if not isinstance(filters, MetadataFilters):
        return dict(filters) if filters else None
    return _all(filters) or None


def _all(filters: MetadataFilters) -> Json:
    """Joins filters as LlamaIndex's own stores do: no filters fit everything, and NOT means none of them."""
    parts = [_all(each) if isinstance(each, MetadataFilters) else _one(each) for each in filters.filters]
    if not parts:
        return {}
    condition = filters.condition or FilterCondition.AND
    joined = parts[0] if len(parts) == 1 else {_JOINED[condition]: parts}
    return {"$not": joined} if condition == FilterCondition.NOT else joined


def _one(wanted: MetadataFilter) -> Json:
    key, operator = wanted.key, wanted.operator
    if not key or key.startswith("$"):
        raise ValueError(f"{key!r} is no name of metadata that kvweave compares: use another")
    if operator in _COMPARED:
        return {key: {_COMPARED[operator]: _value(wanted)}}
    if operator in _LISTED:
        return {key: {_LISTED[operator]: _values(wanted)}}
    if operator == FilterOperator.ALL:
        values = _values(wanted)
        return {"$and": [{key: each} for each in values]} if values else {key: {"$exists": True}}
    if operator == FilterOperator.IS_EMPTY:
        return {"$or": [{key: {"$exists": False}}, {key: {"$in": [None, ""]}}]}
    raise ValueError(
        f"{key}: kvweave's filters have no {operator.name} ({operator.value!r}), they compare whole values: put the "
        "words into the query with mode='lexical', or keep them as a list in the metadata and use CONTAINS, ANY or ALL"
    )


def _value(wanted: MetadataFilter) -> object:
    if isinstance(wanted.value, list):
        raise ValueError(_told(wanted, "takes one value, use IN, ANY or ALL for a list"))
    return wanted.value


def _values(wanted: MetadataFilter) -> list[object]:
    if not isinstance(wanted.value, list):
        raise ValueError(_told(wanted, "takes a list, use EQ or CONTAINS for one value"))
    return [*wanted.value]


def _told(wanted: MetadataFilter, remedy: str) -> str:
    return f"{wanted.key}: {wanted.operator.name} {remedy}, got {wanted.value!r}"
