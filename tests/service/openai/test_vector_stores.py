"""Vector stores by OpenAI's own client, unchanged, in front of a running service: what it makes are collections."""

from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from openai import OpenAI
from openai.types.shared_params import ComparisonFilter

from tests.service.official import official
from tests.service.openai.conftest import bound, found
from tests.service.serving import Inside, good, put_in

LETTERS = [
    {
        "id": "letters/1",
        "title": "First letter",
        "text": "Halio keeps a badger.",
        "metadata": {"year": 1911, "to": "a"},
    },
    {"id": "letters/2", "text": "Mirel keeps a heron.", "metadata": {"year": 1920, "to": "b", "tags": ["x"]}},
    {"id": "letters/3", "text": "Corina keeps a boat.", "metadata": {"to": "b", "read": True}},
]
ALL = {1, 2, 3}


@pytest.fixture(scope="module")
def service(service: Inside) -> Inside:
    with service.client() as client:
        put_in(client, LETTERS, collection="letters / old")
    return service


@pytest.fixture
def client(service: Inside) -> Iterator[OpenAI]:
    with official(service) as client:
        yield client


def cut(tokens: int) -> Any:  # noqa: ANN401
    return {"type": "static", "static": {"max_chunk_size_tokens": tokens, "chunk_overlap_tokens": 0}}


def test_a_vector_store_is_a_collection_from_its_making_to_its_end(service: Inside, client: OpenAI) -> None:
    made = client.vector_stores.create(name="Hand book")
    with service.client() as rest:
        assert good(rest.get("/v1/collections/Hand%20book"))["documents"] == 0
        put_in(rest, [{"id": "page", "text": "Öl boils."}], collection="Hand book")
        found = client.vector_stores.retrieve(made.id)
        assert (found.id, found.name, found.status, found.created_at) == (
            made.id,
            "Hand book",
            "completed",
            made.created_at,
        )
        assert (found.file_counts.completed, found.file_counts.total) == (1, 1)
        assert found.usage_bytes == len("Öl boils.".encode())
        assert client.vector_stores.update(made.id, name="Hand book") == found
        assert client.vector_stores.delete(made.id).deleted
        assert rest.get("/v1/collections/Hand%20book").status_code == rest.get("/v1/documents/page").status_code == 404
    with pytest.raises(openai.NotFoundError, match=f"there is no vector store '{made.id}'"):
        client.vector_stores.retrieve(made.id)


def test_lists_are_walked_by_the_client_in_the_order_in_which_stores_came(client: OpenAI) -> None:
    before = [each.id for each in client.vector_stores.list(order="asc")]
    made = [client.vector_stores.create().id for _ in range(5)]
    try:
        assert [each.id for each in client.vector_stores.list(order="asc", limit=2)] == [*before, *made]
        assert [each.id for each in client.vector_stores.list(limit=2)] == [*reversed(made), *reversed(before)]
        page = client.vector_stores.list(limit=2, before=made[3], order="asc")
        assert ([each.id for each in page.data], page.has_more) == (made[1:3], True)
        with pytest.raises(openai.NotFoundError, match="'vs_nowhere' is not in this list"):
            client.vector_stores.list(after="vs_nowhere")
    finally:
        for each in made:
            client.vector_stores.delete(each)


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_a_list_goes_on_where_a_page_ended_though_what_stood_there_is_gone(
    service: Inside, client: OpenAI, order: Literal["asc", "desc"]
) -> None:
    made = [client.vector_stores.create().id for _ in range(6)]
    walked: list[str] = []
    for each in client.vector_stores.list(order=order, limit=2):
        if each.id in made:
            walked.append(client.vector_stores.delete(each.id).id)
    assert walked == (made if order == "asc" else made[::-1])
    kept = client.vector_stores.list().data
    assert not set(made) & {each.id for each in kept}
    with bound(service, to="a") as other, pytest.raises(openai.NotFoundError, match="is not in this list"):
        other.vector_stores.list(after=made[1])


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"name": "letters / old"}, "there is a vector store of the name 'letters / old' already"),
        ({"expires_after": {"anchor": "last_active_at", "days": 1}}, "nothing expires here: delete it"),
        ({"metadata": {"a": "b"}}, "a vector store keeps no metadata here: give its files attributes"),
        (
            {
                "chunking_strategy": {
                    "type": "static",
                    "static": {"max_chunk_size_tokens": 800, "chunk_overlap_tokens": 4},
                }
            },
            "set chunk_overlap_tokens to 0",
        ),
    ],
)
def test_what_no_collection_can_be_is_refused_with_the_remedy(client: OpenAI, asked: dict[str, Any], told: str) -> None:
    before = client.vector_stores.list().data
    with pytest.raises(openai.APIStatusError, match=told) as caught:
        client.vector_stores.create(**asked)
    assert caught.value.status_code in (400, 409) and client.vector_stores.list().data == before


def test_of_two_that_are_made_at_once_under_one_name_one_is_refused(
    service: Inside, client: OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One has found the name free when the other takes it."""
    ingest, put = service.core.ingest, service.core.ingest.put_collection

    def late(*given: Any, **more: Any) -> bool:  # noqa: ANN401
        monkeypatch.setattr(ingest, "put_collection", put)
        client.vector_stores.create(name="race", chunking_strategy=cut(100))
        return put(*given, **more)

    monkeypatch.setattr(ingest, "put_collection", late)
    with pytest.raises(openai.ConflictError, match="there is a vector store of the name 'race' already"):
        client.vector_stores.create(name="race", chunking_strategy=cut(200))
    with service.client() as rest:
        assert good(rest.get("/v1/collections/race"))["chunk_tokens"] == 100
    client.vector_stores.delete("vs_race")


def test_a_passage_is_found_with_its_file_its_attributes_and_its_text(client: OpenAI) -> None:
    [found] = client.vector_stores.search("vs_letters~20~2F~20old", query="Who keeps a heron?", max_num_results=1).data
    assert (found.file_id, found.filename) == ("file-letters~2F2", "letters/2")
    assert (found.attributes, [each.text for each in found.content]) == (
        {"year": 1920, "to": "b"},
        ["Mirel keeps a heron."],
    )
    both = client.vector_stores.search("vs_letters~20~2F~20old", query=["heron", "badger"], max_num_results=2).data
    assert {each.file_id for each in both} == {"file-letters~2F1", "file-letters~2F2"}
    least: Any = {"score_threshold": found.score + 1}
    assert not client.vector_stores.search("vs_letters~20~2F~20old", query="heron", ranking_options=least).data


def test_a_nul_that_came_in_as_metadata_is_told_as_it_is(service: Inside, client: OpenAI) -> None:
    with service.client() as rest:
        put_in(rest, [{"id": "nul", "text": "Elio keeps a goat.", "metadata": {"k": "a\0b"}}], collection="nuls")
    file_search: Any = {"type": "file_search", "vector_store_ids": ["vs_nuls"]}
    asked: Any = {"tools": [file_search], "include": ["file_search_call.results"], "max_output_tokens": 1}
    [call, *_] = client.responses.create(model="default", input="Who keeps a goat?", **asked).output
    assert call.type == "file_search_call" and call.results
    told = [*client.vector_stores.files.list("vs_nuls"), *client.vector_stores.search("vs_nuls", query="goat")]
    assert [each.attributes for each in (*told, *call.results)] == [{"k": "a\0b"}] * 3
    client.vector_stores.delete("vs_nuls")


@pytest.mark.parametrize(
    ("filters", "fitting"),
    [
        ({"type": "eq", "key": "year", "value": 1911}, {1}),
        ({"type": "ne", "key": "year", "value": 1911}, {2, 3}),
        ({"type": "gt", "key": "year", "value": 1911}, {2}),
        ({"type": "lte", "key": "year", "value": 1920.0}, {1, 2}),
        ({"type": "eq", "key": "read", "value": True}, {3}),
        ({"type": "in", "key": "to", "value": ["a", "c"]}, {1}),
        ({"type": "nin", "key": "to", "value": ["a", "c"]}, {2, 3}),
        (
            {
                "type": "or",
                "filters": [
                    {"type": "eq", "key": "year", "value": 1911},
                    {
                        "type": "and",
                        "filters": [
                            {"type": "eq", "key": "to", "value": "b"},
                            {"type": "gte", "key": "year", "value": 0},
                        ],
                    },
                ],
            },
            {1, 2},
        ),
    ],
)
def test_filters_are_ours_in_other_words(client: OpenAI, filters: ComparisonFilter, fitting: set[int]) -> None:
    assert {int(each[-1]) for each in found(client, "vs_letters~20~2F~20old", filters=filters)} == fitting


@pytest.mark.parametrize(
    "filters",
    [
        {"type": "eq", "key": "$or", "value": 1},
        {"type": "like", "key": "to", "value": "a"},
        {"type": "gt", "key": "read", "value": True},
        {"type": "and", "filters": []},
    ],
)
def test_filters_that_nothing_here_can_mean_are_refused(client: OpenAI, filters: ComparisonFilter) -> None:
    with pytest.raises(openai.BadRequestError, match="filters"):
        client.vector_stores.search("vs_letters~20~2F~20old", query="keeps", filters=filters)


def test_a_key_with_a_filter_sees_what_fits_and_makes_and_ends_nothing(service: Inside) -> None:
    with bound(service, to="a") as mine, bound(service, to="z") as strangers:
        [store] = mine.vector_stores.list().data
        assert (store.file_counts.completed, store.usage_bytes) == (1, len("Halio keeps a badger."))
        assert found(mine, store.id) == ["file-letters~2F1"]
        for act in (mine.vector_stores.delete, lambda each: mine.vector_stores.create(name=each)):
            with pytest.raises(openai.PermissionDeniedError, match="a key with a filter may not make or change"):
                act(store.id)
        assert not strangers.vector_stores.list().data
        told = [refusal(strangers, each) for each in (store.id, "vs_never")]
        assert told[0].replace(store.id, "vs_never") == told[1]


def refusal(client: OpenAI, store: str) -> str:
    told: list[str] = []
    for act in (
        lambda: client.vector_stores.retrieve(store),
        lambda: client.vector_stores.update(store, name="x"),
        lambda: client.vector_stores.delete(store),
        lambda: client.vector_stores.search(store, query="keeps"),
    ):
        with pytest.raises(openai.NotFoundError) as caught:
            act()
        told.append(str(caught.value))
    return "\n".join(told)
