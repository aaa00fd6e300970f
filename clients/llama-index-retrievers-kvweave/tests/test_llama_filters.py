"""LlamaIndex's filters: what they fit in kvweave is what they fit in LlamaIndex's own store."""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_index.core.vector_stores import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters
from llama_index.core.vector_stores.utils import build_metadata_filter_fn

from kvweave_client import Client
from kvweave_client.options import Json, NewDocument
from llama_index.retrievers.kvweave.filters import where

NUMBERS: list[object] = [None, 1, 2.5, 3]
TEXTS: list[object] = ["", "a", "b", "Ü"]
TAGS: list[object] = [[], ["x"], ["x", "y"], ["z", "y", "x"]]
METADATA: list[Json] = [
    {name: value for name, value in (("n", number), ("s", text), ("tags", tags)) if value is not None}
    for number in NUMBERS
    for text in TEXTS
    for tags in TAGS
] + [{}, {"s": None}, {"tags": None, "n": 2}]
ORDERED = [FilterOperator[name] for name in ("EQ", "NE", "GT", "GTE", "LT", "LTE")]
LISTED = [FilterOperator.IN, FilterOperator.NIN]

numbers = st.sampled_from([1, 2, 2.5, 3])
texts = st.sampled_from(["", "a", "b", "Ü", "no"])
tags = st.sampled_from(["x", "y", "z", "no"])


def leaf(key: str, operators: list[FilterOperator], values: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.builds(MetadataFilter, key=st.just(key), operator=st.sampled_from(operators), value=values)


leaves = st.one_of(
    leaf("n", ORDERED, numbers),
    leaf("s", ORDERED, texts),
    leaf("n", LISTED, st.lists(st.sampled_from([1, 2, 3]), max_size=3)),
    leaf("s", LISTED, st.lists(texts, max_size=3)),
    leaf("tags", [FilterOperator.CONTAINS], tags),
    leaf("tags", [FilterOperator.ANY], st.lists(tags, max_size=3)),
    leaf("tags", [FilterOperator.ALL], st.lists(tags, min_size=1, max_size=3)),
    st.builds(
        MetadataFilter,
        key=st.sampled_from(["n", "s", "tags", "none"]),
        operator=st.just(FilterOperator.IS_EMPTY),
        value=st.none(),
    ),
)
conditions = st.sampled_from([*FilterCondition, None])
filters = st.recursive(
    st.builds(MetadataFilters, filters=st.lists(leaves, max_size=3), condition=conditions),
    lambda inner: st.builds(
        MetadataFilters, filters=st.lists(st.one_of(leaves, inner), max_size=3), condition=conditions
    ),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def put_in(client: Client, _numbers: Iterator[int]) -> str:
    """The collection that holds all of METADATA, each under its number."""
    name = f"filters-{next(_numbers)}"
    documents: list[NewDocument] = [
        {"id": f"{name}/{number}", "text": f"Text {number}.", "metadata": each} for number, each in enumerate(METADATA)
    ]
    client.wait(client.put_documents(documents, collection=name).job_id, timeout_s=120)
    return name


def fits(wanted: MetadataFilters | MetadataFilter, metadata: Json) -> bool:
    """LlamaIndex's own function, nested."""
    if isinstance(wanted, MetadataFilter):
        return build_metadata_filter_fn(lambda _: metadata, MetadataFilters(filters=[wanted]))("")
    if not wanted.filters:
        return True
    found = [fits(each, metadata) for each in wanted.filters]
    if wanted.condition == FilterCondition.NOT:
        return not any(found)
    return any(found) if wanted.condition == FilterCondition.OR else all(found)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(wanted=filters)
def test_a_filter_fits_what_it_fits_in_llama_index(client: Client, put_in: str, wanted: MetadataFilters) -> None:
    mapped = where(wanted)
    found = client.documents(collection=put_in, filter=mapped or {})
    expected = [number for number, metadata in enumerate(METADATA) if fits(wanted, metadata)]
    assert sorted(int(each.id.rpartition("/")[2]) for each in found) == expected


@pytest.mark.parametrize("operator", [FilterOperator.TEXT_MATCH, FilterOperator.TEXT_MATCH_INSENSITIVE])
def test_what_kvweave_cannot_compare_is_refused_with_its_name_and_a_remedy(operator: FilterOperator) -> None:
    wanted = MetadataFilters(filters=[MetadataFilter(key="s", value="a", operator=operator)])
    with pytest.raises(ValueError, match=rf"s: kvweave's filters have no {operator.name} .* use CONTAINS, ANY or ALL"):
        where(wanted)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (MetadataFilter(key="s", value=["a"], operator=FilterOperator.EQ), r"s: EQ takes one value.*\['a'\]"),
        (MetadataFilter(key="s", value="a", operator=FilterOperator.IN), "s: IN takes a list, use EQ.*'a'"),
        (MetadataFilter(key="$or", value="a"), "is no name of metadata"),
        (MetadataFilter(key="", value="a"), "is no name of metadata"),
    ],
)
def test_a_value_that_does_not_fit_its_operator_is_named(wanted: MetadataFilter, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        where(MetadataFilters(filters=[wanted]))


def test_every_operator_and_condition_is_known() -> None:
    values: dict[FilterOperator, object] = {
        operator: ["a"] for operator in (FilterOperator.IN, FilterOperator.NIN, FilterOperator.ANY, FilterOperator.ALL)
    }
    text = (FilterOperator.TEXT_MATCH, FilterOperator.TEXT_MATCH_INSENSITIVE)
    for operator in set(FilterOperator) - {*text}:
        for condition in FilterCondition:
            one = MetadataFilter.model_validate({"key": "s", "value": values.get(operator, "a"), "operator": operator})
            assert where(MetadataFilters(filters=[one, one], condition=condition))


def test_a_dict_is_in_kvweaves_form_already() -> None:
    own: Json = {"n": {"$gte": 2}, "s": {"$ne": None}}
    assert where(own) == own and where({}) is None and where(None) is None
