"""OpenAI's filters on the attributes of files, as the filters on metadata that they are here. Looks nothing up."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from retriever.documents import Json
from service.api.fields import Strict

# What begins with `$` would be an operator of ours.
AttributeName = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^[^$\x00][^\x00]*$")]
Ordered = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")] | int | float
Scalar = Ordered | bool


class EqualityFilter(Strict):
    """An attribute, and what it must be. One that is absent is unequal to everything."""

    key: AttributeName
    type: Literal["eq", "ne"]
    value: Scalar

    def to_filter(self) -> Json:
        return {self.key: {f"${self.type}": self.value}}


class OrderFilter(Strict):
    """An attribute, and what it must be more or less than. Numbers are compared with numbers, texts with texts."""

    key: AttributeName
    type: Literal["gt", "gte", "lt", "lte"]
    value: Ordered

    def to_filter(self) -> Json:
        return {self.key: {f"${self.type}": self.value}}


class MembershipFilter(Strict):
    """An attribute, and the values of which it must be one, or none."""

    key: AttributeName
    type: Literal["in", "nin"]
    value: list[Scalar] = Field(max_length=1000)

    def to_filter(self) -> Json:
        return {self.key: {f"${self.type}": self.value}}


class CompoundFilter(Strict):
    """Filters of which all must hold, or one."""

    type: Literal["and", "or"]
    filters: list[AttributeFilter] = Field(min_length=1, max_length=200)

    def to_filter(self) -> Json:
        return {f"${self.type}": [each.to_filter() for each in self.filters]}


AttributeFilter = Annotated[
    EqualityFilter | OrderFilter | MembershipFilter | CompoundFilter, Field(discriminator="type")
]
CompoundFilter.model_rebuild()
