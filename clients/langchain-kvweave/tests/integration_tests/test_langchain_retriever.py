"""The retriever against a service: what documents say of themselves, options of a call, filters."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda
from langchain_core.structured_query import (
    Comparator,
    Comparison,
    FilterDirective,
    Operation,
    Operator,
    StructuredQuery,
)

from clients.tests.canned import PASSAGES
from clients.tests.readme import Service
from kvweave_client import BadRequest, Client, NotFound
from kvweave_client.options import NewChunk, NewDocument
from langchain_kvweave import KVWeaveRetriever, KVWeaveTranslator

COLLECTION = "tests-langchain-retriever"
QUERY = "Halio and Norworks: lamps of the captain in Belford, and the next page"
METADATA: list[dict[str, Any]] = [
    {"year": 2019, "lang": "en", "tags": ["a", "b"]},
    {"year": 2020, "lang": "de", "tags": ["b"], "day": "2024-02-29"},
    {"year": 2021, "lang": "en", "tags": [], "score": "mine"},
    {"lang": "fr", "tags": ["c", "a"]},
]


@pytest.fixture(scope="module", autouse=True)
def filled(service: Service) -> Iterator[None]:
    """One document for each metadata; the tests only read."""
    documents = [
        NewDocument(id=f"{COLLECTION}/{number}", title=f"Letter {number}", text=text, metadata=METADATA[number])
        for number, text in enumerate(PASSAGES)
    ]
    with Client(service.base_url, service.key) as client:
        client.wait(client.put_documents(documents, collection=COLLECTION).job_id)
        yield
        client.delete_collection(COLLECTION)


@pytest.fixture(scope="module")
def everything(service: Service) -> KVWeaveRetriever:
    options: dict[str, Any] = {"top_k": 10, "base_url": service.base_url, "api_key": service.key}
    return KVWeaveRetriever(collection=COLLECTION, **options)


def years(retriever: KVWeaveRetriever, **options: Any) -> list[object]:  # noqa: ANN401 (any)
    return sorted(document.metadata.get("year", 0) for document in retriever.invoke(QUERY, **options))


def test_a_document_says_where_it_is_from_and_whether_its_kv_is_there(
    everything: KVWeaveRetriever, client: Client
) -> None:
    document = next(each for each in everything.invoke("Halio badger") if each.metadata["lang"] == "de")
    [state] = client.lookup(chunk_ids=[document.metadata["kvweave_chunk_id"]])
    assert state.state == document.metadata["kvweave_cache"] == "stored"
    assert document.id == document.metadata["kvweave_chunk_id"]
    assert document.metadata["kvweave_document_id"] == f"{COLLECTION}/1"
    assert document.metadata["kvweave_title"] == "Letter 1"
    assert document.metadata["kvweave_score"] > 0
    assert (document.metadata["kvweave_start"], document.metadata["kvweave_end"]) == (0, len(document.page_content))
    assert {name: value for name, value in document.metadata.items() if "kvweave" not in name} == METADATA[1]


async def test_both_ways_find_the_same_best_first(everything: KVWeaveRetriever) -> None:
    found = everything.invoke(QUERY)
    again = await everything.ainvoke(QUERY)
    for document in again:  # what is deleted elsewhere counts until it is cleared away
        document.metadata["kvweave_score"] = pytest.approx(document.metadata["kvweave_score"], rel=0.5)
    assert found == again
    scores = [document.metadata["kvweave_score"] for document in found]
    assert len(found) == len(METADATA) and scores == sorted(scores, reverse=True)


async def test_the_state_of_caches_can_be_left_out(everything: KVWeaveRetriever) -> None:
    quick = everything.model_copy(update={"cache_state": False})
    for found in (quick.invoke(QUERY), await quick.ainvoke(QUERY)):
        assert len(found) == len(METADATA) and not any("kvweave_cache" in document.metadata for document in found)


def test_options_of_a_call_go_before_those_of_the_retriever(everything: KVWeaveRetriever) -> None:
    english = everything.model_copy(update={"filter": {"lang": "en"}})
    assert years(english) == [2019, 2021]
    assert len(years(english, k=1)) == len(years(english, top_k=1)) == 1
    assert years(english, filter={"lang": "de"}) == [2020]
    assert years(english, filter=None) == [0, 2019, 2020, 2021]
    with pytest.raises(NotFound, match="there is no collection 'no such collection'"):
        years(english, collection="no such collection")
    assert years(english, mode="lexical") == [2019, 2021]


def test_neighbors_come_along(client: Client, retriever: KVWeaveRetriever) -> None:
    chunks = [NewChunk(text=f"The {word} is here.") for word in ("badger", "lantern", "painter")]
    document = NewDocument(id=f"{retriever.collection}/1", chunks=chunks)
    client.wait(client.put_documents([document], collection=str(retriever.collection)).job_id)
    assert len(retriever.invoke("lantern", k=1, neighbors=1)) == 3


def test_an_option_that_no_search_has_is_named(everything: KVWeaveRetriever) -> None:
    with pytest.raises(TypeError, match="'kay'"):
        everything.invoke(QUERY, kay=3)
    with pytest.raises(TypeError, match="got function"):
        everything.invoke(QUERY, filter=lambda document: True)
    with pytest.raises(BadRequest, match=r"\$near"):
        everything.invoke(QUERY, filter={"year": {"$near": 2020}})


COMPARED = st.one_of(
    st.tuples(st.just("year"), st.integers(2018, 2022)),
    st.tuples(st.just("lang"), st.sampled_from(["en", "de", "fr", "it"])),
    st.tuples(st.just("tags"), st.sampled_from(["a", "b", "c", "d"])),
)
ONE = [Comparator.EQ, Comparator.NE, Comparator.GT, Comparator.GTE, Comparator.LT, Comparator.LTE]
FILTERS = st.recursive(
    st.one_of(
        st.builds(lambda name, pair: Comparison(name, *pair), st.sampled_from(ONE), COMPARED),
        st.builds(
            lambda name, pair: Comparison(name, pair[0], [pair[1]]),
            st.sampled_from([Comparator.IN, Comparator.NIN]),
            COMPARED,
        ),
    ),
    lambda inner: st.builds(Operation, st.sampled_from(list(Operator)), st.lists(inner, min_size=1, max_size=3)),
    max_leaves=5,
)


def holds(directive: FilterDirective, metadata: dict[str, Any]) -> bool:
    """What it means, in Python: of a list each element counts, and what is absent equals nothing."""
    if isinstance(directive, Operation):
        each = [holds(argument, metadata) for argument in directive.arguments]
        return {Operator.AND: all(each), Operator.OR: any(each), Operator.NOT: not all(each)}[directive.operator]
    assert isinstance(directive, Comparison)
    found = metadata.get(directive.attribute, [])
    values = found if isinstance(found, list) else [found]
    value = directive.value
    return {
        Comparator.EQ: lambda: any(each == value for each in values),
        Comparator.NE: lambda: not any(each == value for each in values),
        Comparator.GT: lambda: any(each > value for each in values),
        Comparator.GTE: lambda: any(each >= value for each in values),
        Comparator.LT: lambda: any(each < value for each in values),
        Comparator.LTE: lambda: any(each <= value for each in values),
        Comparator.IN: lambda: any(each in value for each in values),
        Comparator.NIN: lambda: not any(each in value for each in values),
    }[directive.comparator]()


@given(FILTERS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_structured_query_finds_what_it_says(everything: KVWeaveRetriever, directive: FilterDirective) -> None:
    wanted = sorted(metadata.get("year", 0) for metadata in METADATA if holds(directive, metadata))
    plain = everything.model_copy(update={"cache_state": False})
    assert years(plain, filter=directive) == wanted


def test_dates_of_a_query_constructor_are_compared_as_text(everything: KVWeaveRetriever) -> None:
    value = {"type": "date", "date": "2024-02-01"}
    assert years(everything, filter=Comparison(Comparator.GT, "day", value)) == [2020]


@pytest.mark.parametrize("comparator", [Comparator.LIKE, Comparator.CONTAIN])
def test_a_comparison_that_there_is_not_is_refused(everything: KVWeaveRetriever, comparator: Comparator) -> None:
    with pytest.raises(ValueError, match=f"by '{comparator.value}', but by eq"):
        everything.invoke(QUERY, filter=Comparison(comparator, "lang", "e"))


def constructed(asked: str) -> StructuredQuery:
    """As a model would make it."""
    return StructuredQuery(asked, Comparison(Comparator.EQ, "lang", "en"), 1)


def test_a_query_constructor_and_the_retriever_make_a_self_query(everything: KVWeaveRetriever) -> None:
    def search(query: StructuredQuery) -> list[Document]:
        text, options = KVWeaveTranslator().visit_structured_query(query)
        return everything.invoke(text, **options)

    [found] = (RunnableLambda(constructed) | search).invoke(QUERY)
    assert found.metadata["lang"] == "en"
    assert years(everything, filter=constructed(QUERY)) == [2019, 2021]
