"""`file_search` over several vector stores by OpenAI's own client, unchanged, in front of a running service."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.responses import Response
from openai.types.responses.response_file_search_tool_call import Result

from service.access.principal import DEFAULT_TENANT, Role
from tests.service.checkpoints import small
from tests.service.official import official
from tests.service.serving import Inside, good, in_process, put_in, settings_in

SHED = [
    {"id": "halio", "text": "Halio keeps a badger in the shed.", "metadata": {"year": 1911}},
    {"id": "lydia", "text": "Lydia keeps a boat in the shed.", "metadata": {"year": 1930}},
]
RIVER = [
    {"id": "mirel", "text": "Mirel keeps a heron by the river.", "metadata": {"year": 1911}},
    {"id": "corina", "text": "Corina keeps a badger by the river.", "metadata": {"year": 1930}},
]
ATTIC = [{"id": "elio", "text": "Elio keeps a badger in the attic.", "metadata": {"year": 1911}}]
BADGERS, STRANGE = "Who keeps a badger?", "Which wine goes with salmon?"
BOTH = ("vs_shed", "vs_river")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    with in_process(settings_in(tmp_path_factory.mktemp("searched"), store="mem://", model=small())) as service:
        with service.client() as http:
            for name, documents in (("shed", SHED), ("river", RIVER), ("attic", ATTIC)):
                put_in(http, documents, collection=name)
        yield service


@pytest.fixture
def client(service: Inside) -> Iterator[OpenAI]:
    """All collections have the rules of new ones."""
    with service.client() as http:
        for name in ("shed", "river", "attic"):
            good(http.put(f"/v1/collections/{name}", json={"floor": None, "on_empty": "answer", "search": True}))
    with official(service) as client:
        yield client


def asked(client: OpenAI, *stores: str, query: str = BADGERS, **tool: Any) -> Response:  # noqa: ANN401
    search: Any = {"type": "file_search", "vector_store_ids": [*stores], **tool}
    return client.responses.create(
        model="default",
        input=query,
        tools=[search],
        include=["file_search_call.results"],
        max_output_tokens=16,
        temperature=0,
    )


def results(response: Response) -> list[Result]:
    call = response.output[0]
    assert call.type == "file_search_call" and call.results is not None
    return call.results


def found(response: Response) -> list[str | None]:
    return [each.filename for each in results(response)]


def refused(client: OpenAI, *stores: str, query: str = BADGERS) -> tuple[int, str]:
    with pytest.raises(openai.APIStatusError) as caught:
        asked(client, *stores, query=query)
    body: Any = caught.value.body
    return caught.value.status_code, body["message"]


def relevance(response: Response) -> dict[str, float]:
    return response.to_dict()["kvweave"]["report"]["relevance"]  # type: ignore[index]


def test_what_is_found_in_several_stores_is_one_list_in_order_of_score(client: OpenAI) -> None:
    both = asked(client, *BOTH)
    alone = [each for store in BOTH for each in client.vector_stores.search(store, query=BADGERS)]
    assert [(each.filename, each.score) for each in results(both)] == [
        (each.filename, each.score) for each in sorted(alone, key=lambda each: -each.score)
    ]
    assert {"halio", "corina"} == set(found(both)[:2]) and "elio" not in found(both)
    assert found(asked(client, *reversed(BOTH), BOTH[0])) == found(both)
    message = both.output[1]
    assert message.type == "message" and message.content[0].type == "output_text"
    cited = [each for each in message.content[0].annotations if each.type == "file_citation"]
    assert [each.filename for each in cited] == found(both)


def test_what_a_search_is_told_holds_for_all_its_stores(client: OpenAI) -> None:
    every = results(asked(client, *BOTH))
    assert found(asked(client, *BOTH, max_num_results=2)) == [each.filename for each in every[:2]]
    year = {"type": "eq", "key": "year", "value": 1911}
    assert set(found(asked(client, *BOTH, filters=year))) == {"halio", "mirel"}
    least = every[1].score or 0
    assert found(asked(client, *BOTH, ranking_options={"score_threshold": least})) == [
        each.filename for each in every if (each.score or 0) >= least
    ]


def test_a_threshold_that_nothing_reaches_finds_nothing(service: Inside, client: OpenAI) -> None:
    best = results(asked(client, *BOTH))[0].score or 0
    over: Any = {"ranking_options": {"score_threshold": best + 1}}
    nothing = asked(client, *BOTH, **over)
    assert found(nothing) == [] and relevance(nothing) == {
        "found": False,
        "best": pytest.approx(best, abs=1e-3),
        "floor": pytest.approx(best + 1, abs=1e-3),
    }
    with service.client() as http:
        good(http.put("/v1/collections/river", json={"on_empty": "refuse"}))
    with pytest.raises(openai.NotFoundError, match="nothing was found that answers this: the nearest passage comes to"):
        asked(client, *BOTH, **over)


def test_a_find_is_above_the_floor_of_its_own_store(service: Inside, client: OpenAI) -> None:
    assert not relevance(asked(client, *BOTH, query=STRANGE))["found"]
    with service.client() as http:
        good(http.put("/v1/collections/shed", json={"floor": 9}))
        assert relevance(asked(client, *BOTH))["found"]
        good(http.put("/v1/collections/river", json={"floor": 8}))
        told = relevance(asked(client, *BOTH))
        assert not told["found"] and told["floor"] == 8


def test_one_store_that_refuses_is_enough_where_nothing_is_found(service: Inside, client: OpenAI) -> None:
    with service.client() as http:
        good(http.put("/v1/collections/river", json={"on_empty": "refuse"}))
    asked(client, BOTH[0], query=STRANGE)
    for stores in (BOTH, BOTH[::-1]):
        status, told = refused(client, *stores, query=STRANGE)
        assert status == 404 and "the collection 'river' refuses to answer without" in told
    assert found(asked(client, *BOTH))


def test_a_store_without_search_is_named(service: Inside, client: OpenAI) -> None:
    with service.client() as http:
        good(http.put("/v1/collections/river", json={"search": False}))
    status, told = refused(client, *BOTH)
    assert status == 400 and "the collection 'river' is kept without search" in told


def test_a_store_that_others_may_not_see_is_told_like_one_that_never_was(service: Inside, client: OpenAI) -> None:
    assert refused(client, *BOTH, "vs_never") == (404, "there is no vector store 'vs_never'")
    _, key = service.core.control.create_key(DEFAULT_TENANT, Role.READ, bound={"year": 1930})
    with official(service, key=key) as bound:
        assert set(found(asked(bound, *BOTH))) == {"lydia", "corina"}
        hidden = [refused(bound, *BOTH, each) for each in ("vs_attic", "vs_never")]
        assert hidden[0] == (404, hidden[1][1].replace("vs_never", "vs_attic"))
