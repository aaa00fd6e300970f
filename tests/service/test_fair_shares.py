"""Time that a request is given, and who has what in the engine, as clients and operators see it."""

from collections.abc import Iterator

import pytest

from blend.errors import Late
from service.access.principal import Role
from tests.service.serving import Inside, Json, in_process, sampled, settings_in

ASKED: dict[str, Json] = {
    "/v1/query": {"question": "Who is it?", "top_k": 0},
    "/v1/chat/completions": {"model": "default", "messages": [{"role": "user", "content": "Who is it?"}]},
}


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    with in_process(settings_in(tmp_path_factory.mktemp("fair"), store="mem://", weights={"other": 2.0})) as served:
        yield served


def test_time_that_is_given_is_kept_and_a_tenants_time_is_told(inside: Inside) -> None:
    with inside.client() as client:
        for path, body in ASKED.items():
            assert client.post(path, json=body, headers={"X-Request-Timeout": "60"}).status_code == 200
            for wrong in ("soon", "0", "-1", "inf", "nan"):
                refused = client.post(path, json=body, headers={"X-Request-Timeout": wrong})
                assert refused.status_code in (400, 422) and "X-Request-Timeout" in refused.text, refused.text
            late = client.post(path, json=body, headers={"X-Request-Timeout": "0.000001"})
            assert late.status_code == 503 and late.headers["Retry-After"] == "1", late.text
            assert "the time that it was given" in late.text
        _, key = inside.core.control.create_key("other", Role.READ)
        with inside.client(key) as other:
            assert other.post("/v1/query", json=ASKED["/v1/query"]).status_code == 200
        told = sampled(client)
    for tenant in ("default", "other"):
        assert told[f'kvweave_engine_seconds_total{{tenant="{tenant}"}}'] > 0
        assert told[f'kvweave_engine_waiting{{tenant="{tenant}"}}'] == 0
        assert told[f'kvweave_engine_running{{tenant="{tenant}"}}'] == 0


def test_what_cannot_be_in_time_is_refused_before_anything_is_looked_up(
    inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, float]] = []

    def refuse(payer: str, left_s: float) -> None:
        asked.append((payer, left_s))
        raise Late("20 requests go before this one", retry_after_s=7)

    monkeypatch.setattr(inside.core.model.engine, "refuse_late", refuse)
    monkeypatch.setattr("service.answers.pipeline.gather", lambda *each: pytest.fail("it was looked up"))
    with inside.client() as client:
        for path, body in ASKED.items():
            late = client.post(path, json=body, headers={"X-Request-Timeout": "60"})
            assert (late.status_code, late.headers["Retry-After"]) == (503, "7"), late.text
    assert asked == [("default", 60.0)] * len(ASKED)
