"""Change numbers: what an answer tells is what a later request sees, and nobody learns how many there were."""

import threading
from collections.abc import Iterator
from random import Random

import httpx
import pytest

from retriever.types import CatalogState
from service.api import changes
from service.api.changes import HEADER, change_token, changes_in
from service.errors import Conflict
from tests.service.checkpoints import small
from tests.service.serving import Inside, Json, finished, good, in_process, settings_in

TEXT = "The cedar lamps of Aveiro burn until the tide has turned."


def state(changes: int, catalog: str = "catalog") -> CatalogState:
    return CatalogState(catalog, changes, 0, 0, 0)


def test_what_was_told_is_read_again_and_nothing_else_is() -> None:
    chance = Random(7)
    for _ in range(300):
        number = chance.randrange(1 << chance.randint(1, 62))
        text = change_token(state(number))
        assert changes_in(text, state(0)) == number
        place = chance.randrange(len(text))
        other = f"{text[:place]}{(int(text[place], 16) + chance.randint(1, 15)) % 16:x}{text[place + 1 :]}"
        for bad, catalog in ((other, "catalog"), (text, "another")):
            with pytest.raises(Conflict, match="was not told by this tenant's catalog"):
                changes_in(bad, state(0, catalog))


def test_a_text_tells_no_number() -> None:
    """The same number is another text each time, of no more likeness to it than to any."""
    texts = {change_token(state(number)) for number in [1] * 64 + [2] * 64}
    assert len(texts) == 128 and {len(text) for text in texts} == {48}
    assert len({text[16:32] for text in texts}) == 128


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    with in_process(settings_in(tmp_path_factory.mktemp("changes"), model=small())) as inside:
        yield inside


def test_a_request_waits_for_what_it_must_see(inside: Inside) -> None:
    catalog = inside.core.tenants.open("default").catalog
    with catalog.view() as view:
        now = view.state()
    text = change_token(state(now.changes + 1, now.catalog))

    def change() -> None:
        with catalog.change() as change:
            change.keep_prefix("later", model="m", ids=[1])

    timer = threading.Timer(0.3, change)
    timer.start()
    with inside.client() as client:
        answer = client.get("/v1/documents", headers={HEADER: text})
    timer.join()
    assert answer.is_success


def test_what_is_changed_says_what_a_request_must_see(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "WAIT_S", 0.2)
    with inside.client() as client:

        def seeing(change: str, method: str, path: str, body: Json | None = None) -> httpx.Response:
            return client.request(method, path, json=body, headers={HEADER: change})

        accepted = client.post("/v1/documents", json={"documents": [{"id": "lamps", "text": TEXT}]})
        job = finished(client, good(accepted)["job_id"])
        edits = [
            client.patch("/v1/documents/lamps", json={"metadata": {"lang": "en"}}),
            client.put("/v1/collections/other", json={}),
            client.delete("/v1/collections/other"),
            client.delete("/v1/documents/lamps"),
        ]
        numbers: list[int] = []
        with inside.core.tenants.open("default").catalog.view() as view:
            latest = view.state()
        for text in (accepted.headers[HEADER], job["change"], *(each.headers[HEADER] for each in edits)):
            numbers.append(changes_in(text, latest))
            assert seeing(text, "GET", "/v1/documents").is_success
            assert seeing(text, "GET", "/v1/models").is_success
        assert numbers == sorted(numbers) and numbers[0] < numbers[1] < numbers[2]
        failed = client.delete("/v1/documents/lamps")
        assert failed.status_code == 404 and HEADER not in failed.headers
        assert HEADER not in client.get("/v1/documents").headers

        late = seeing(change_token(state(latest.changes + 99, latest.catalog)), "POST", "/v1/search", {"query": "x"})
        assert late.status_code == 503 and int(late.headers["Retry-After"]) >= 1
        assert "has not arrived" in late.json()["detail"]
        for text, status in (("7", 422), ("ff" * 24, 409), (change_token(state(1, "another")), 409)):
            refused = seeing(text, "GET", "/v1/documents")
            assert refused.status_code == status and HEADER in refused.text
            chat = seeing(text, "GET", "/v1/models")
            assert chat.status_code in (400, status) and HEADER in chat.json()["error"]["message"]
