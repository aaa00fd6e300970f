"""The JSON schemas that answers obey. Knows no framework."""

from typing import cast

from kvweave_client.options import Json

_OPEN = ("additionalProperties", "unevaluatedProperties", "patternProperties")


def closed(schema: object) -> object:
    """The schema with objects that have no fields but those that are named, unless it says otherwise.

    A model would go on and on.
    """
    if isinstance(schema, list):
        return [closed(each) for each in cast(list[object], schema)]
    if not isinstance(schema, dict):
        return schema
    told = {name: closed(each) for name, each in cast(Json, schema).items()}
    is_closed = isinstance(told.get("properties"), dict) and told.get("type") == "object"
    return {**told, "additionalProperties": False} if is_closed and not told.keys() & {*_OPEN} else told
