"""Files in several vector stores by OpenAI's own client, unchanged, in front of a running service."""

from typing import Any

import openai
import pytest
from openai import OpenAI

from service.openai import attached_files, files
from service.truth.control import Quota
from tests.service.openai.conftest import BADGER, HERON, bound, found
from tests.service.serving import Inside, good, put_in

STORES = ("one", "two", "three")
ONE, TWO, THREE = (f"vs_{name}" for name in STORES)


@pytest.fixture
def client(client: OpenAI) -> OpenAI:
    """Three stores, with nothing in them."""
    for name in STORES:
        client.vector_stores.create(name=name)
    return client


def put(client: OpenAI, file: str, *stores: str, **attributes: Any) -> None:  # noqa: ANN401
    for store in stores:
        done = client.vector_stores.files.create_and_poll(
            file, vector_store_id=store, attributes=attributes, poll_interval_ms=20
        )
        assert (done.id, done.status, done.vector_store_id) == (file, "completed", store)


def uploaded(client: OpenAI, text: bytes = BADGER) -> str:
    return client.files.create(file=("letter.txt", text), purpose="assistants").id


def gone(client: OpenAI, file: str, store: str) -> bool:
    with pytest.raises(openai.NotFoundError):
        client.vector_stores.files.retrieve(file, vector_store_id=store)
    return found(client, store) == [] and not client.vector_stores.files.list(store).data


def documents(service: Inside) -> dict[str, str]:
    with service.client() as rest:
        return {each["id"]: each["collection"] for each in good(rest.get("/v1/documents"))["documents"]}


def test_a_file_is_in_two_stores_as_one(service: Inside, client: OpenAI) -> None:
    file = uploaded(client)
    put(client, file, ONE, TWO)
    put(client, file, TWO)
    assert [each.id for each in client.files.list()] == [file] and len(documents(service)) == 2
    for store in (ONE, TWO):
        assert found(client, store) == [each.id for each in client.vector_stores.files.list(store)] == [file]
        assert client.vector_stores.retrieve(store).file_counts.completed == 1
        [hit] = client.vector_stores.search(store, query="badger")
        [text] = client.vector_stores.files.content(file, vector_store_id=store)
        assert (hit.filename, hit.content[0].text, text.text) == ("letter.txt", BADGER.decode(), BADGER.decode())
    tool: Any = {"type": "file_search", "vector_store_ids": [ONE, TWO]}
    answer = client.responses.create(
        model="default", input="badger", tools=[tool], include=["file_search_call.results"], max_output_tokens=8
    )
    call = answer.output[0]
    assert call.type == "file_search_call" and call.results is not None
    assert [(each.file_id, each.filename) for each in call.results] == [(file, "letter.txt")]


def test_a_file_has_attributes_of_its_own_in_each_store(client: OpenAI) -> None:
    file = uploaded(client)
    put(client, file, ONE, year=1911)
    put(client, file, TWO, year=1920)
    client.vector_stores.files.update(file, vector_store_id=TWO, attributes={"year": 1930})
    late: Any = {"type": "gt", "key": "year", "value": 1911}
    assert (found(client, ONE, filters=late), found(client, TWO, filters=late)) == ([], [file])
    assert client.vector_stores.files.retrieve(file, vector_store_id=ONE).attributes == {"year": 1911}
    assert client.vector_stores.files.retrieve(file, vector_store_id=TWO).attributes == {"year": 1930}


@pytest.mark.parametrize(("first", "second"), [(ONE, TWO), (TWO, ONE)])
def test_a_file_that_is_taken_out_of_one_store_is_in_the_other(client: OpenAI, first: str, second: str) -> None:
    file = uploaded(client)
    put(client, file, ONE, TWO)
    client.vector_stores.files.delete(file, vector_store_id=first)
    assert gone(client, file, first) and found(client, second) == [file]
    assert client.files.content(file).content == BADGER
    put(client, file, THREE)
    assert found(client, THREE) == [file] == [each.id for each in client.files.list()]
    client.vector_stores.files.delete(file, vector_store_id=second)
    assert gone(client, file, second) and found(client, THREE) == [file]
    client.vector_stores.files.delete(file, vector_store_id=THREE)
    assert client.files.content(file).content == BADGER
    put(client, file, second)
    assert found(client, second) == [file]


def test_a_file_outlives_the_store_that_it_came_into_first(service: Inside, client: OpenAI) -> None:
    file = uploaded(client)
    put(client, file, ONE, TWO)
    client.vector_stores.delete(ONE)
    assert found(client, TWO) == [file] == [each.id for each in client.files.list()]
    assert client.files.content(file).content == BADGER
    put(client, file, THREE)
    client.vector_stores.files.delete(file, vector_store_id=TWO)
    client.vector_stores.files.delete(file, vector_store_id=THREE)
    assert client.files.content(file).content == BADGER and documents(service) == {}


def test_a_file_that_is_deleted_is_in_no_store(service: Inside, client: OpenAI) -> None:
    file, other = uploaded(client), uploaded(client, HERON)
    put(client, file, *(ONE, TWO, THREE))
    put(client, other, TWO)
    assert client.files.delete(file).deleted
    assert gone(client, file, ONE) and gone(client, file, THREE) and found(client, TWO) == [other]
    assert list(documents(service).values()) == ["two"] and [each.id for each in client.files.list()] == [other]
    with service.client() as rest:
        assert good(rest.post("/v1/search", json={"query": "badger"}))["hits"] == []
    with pytest.raises(openai.NotFoundError):
        client.files.delete(file)


def test_a_copy_that_is_begun_before_a_delete_ends_with_it(
    service: Inside, client: OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy is read, then the file goes, then the copy is handed over."""
    file, accept = uploaded(client), attached_files.accept
    put(client, file, ONE)

    def late(*given: Any, **more: Any) -> tuple[str, list[str]]:  # noqa: ANN401
        monkeypatch.setattr(attached_files, "accept", accept)
        client.files.delete(file)
        return accept(*given, **more)

    monkeypatch.setattr(attached_files, "accept", late)
    with pytest.raises(openai.NotFoundError):
        client.vector_stores.files.create(TWO, file_id=file)
    assert gone(client, file, TWO) and documents(service) == {} and not client.files.list().data


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_file_that_is_put_in_twice_at_once_is_on_its_way_in(
    service: Inside, client: OpenAI, monkeypatch: pytest.MonkeyPatch, *, is_deleted: bool
) -> None:
    """Both find it waiting, then one is handed over, then the other."""
    file, accept = uploaded(client), attached_files.accept

    def late(*given: Any, **more: Any) -> tuple[str, list[str]]:  # noqa: ANN401
        monkeypatch.setattr(attached_files, "accept", accept)
        client.vector_stores.files.create(ONE, file_id=file)
        return accept(*given, **more)

    monkeypatch.setattr(attached_files, "accept", late)
    with service.core.ingest.resting():
        assert client.vector_stores.files.create(ONE, file_id=file).status == "in_progress"
        assert (
            [each.id for each in client.vector_stores.files.list(ONE)]
            == [file]
            == [each.id for each in client.files.list()]
        )
        assert not is_deleted or client.files.delete(file).deleted
    if is_deleted:
        assert gone(client, file, ONE) and not client.files.list().data
    else:
        assert client.vector_stores.files.poll(file, vector_store_id=ONE, poll_interval_ms=20).status == "completed"


def test_a_copy_that_is_handed_over_during_a_delete_goes_with_it(
    service: Inside, client: OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, delete = uploaded(client), files.delete_document
    put(client, file, ONE)

    def late(*given: Any) -> object:  # noqa: ANN401
        monkeypatch.setattr(files, "delete_document", delete)
        client.vector_stores.files.create(TWO, file_id=file)
        return delete(*given)

    monkeypatch.setattr(files, "delete_document", late)
    client.files.delete(file)
    assert gone(client, file, TWO) and documents(service) == {} and not client.files.list().data


def test_a_copy_counts_for_the_quota(service: Inside, client: OpenAI) -> None:
    file = uploaded(client)
    put(client, file, ONE)
    service.core.control.set_quota("default", Quota(2, None))
    try:
        put(client, file, TWO)
        with pytest.raises(openai.RateLimitError, match="the quota of tenant 'default' is 2 documents"):
            client.vector_stores.files.create(THREE, file_id=file)
    finally:
        service.core.control.set_quota("default", Quota())


def test_a_key_sees_the_places_that_its_filter_lets_it_see(service: Inside, client: OpenAI) -> None:
    with service.client() as rest:
        put_in(rest, [{"id": "heron", "text": HERON.decode(), "metadata": {"team": "a"}}], collection="one")
        put_in(rest, [{"id": "other", "text": BADGER.decode(), "metadata": {"team": "b"}}], collection="two")
    put(client, "file-heron", TWO, team="b")
    with bound(service, team="a") as a, bound(service, team="b") as b:
        assert (found(a, ONE), sorted(found(b, TWO))) == (["file-heron"], ["file-heron", "file-other"])
        assert a.vector_stores.list().data[0].id == ONE and len(a.vector_stores.list().data) == 1
        assert b.vector_stores.files.retrieve("file-heron", vector_store_id=TWO).attributes == {"team": "b"}
        own = a.vector_stores.files.upload_and_poll(vector_store_id=ONE, file=("a.txt", BADGER)).id
        put(a, own, THREE)
        assert found(a, THREE) == [own] and found(a, ONE).count(own) == 1
        a.files.delete(own)
        assert own not in found(a, ONE) and not [each for each in a.files.list() if each.id == own]
        b.files.delete("file-heron")
        assert found(a, ONE) == ["file-heron"] and "file-heron" not in found(b, TWO)
