"""The link that `kvweave serve` prints: its token is good once, soon, and near."""

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from service.access.one_time_link import LIFE_S, OneTimeLink
from service.api.app import create_app
from service.settings import Settings
from service.truth.databases import ADMIN_KEY
from tests.service.api.fakes import FakeCore, as_core, principal
from tests.service.lent import application_over


def test_a_token_is_good_once_until_its_time_is_over_or_another_is_issued() -> None:
    now = 0.0
    link = OneTimeLink(clock=lambda: now)
    assert not link.redeem(""), "none was issued"
    token = link.issue()
    assert not link.redeem("a guess")
    assert (link.redeem(token), link.redeem(token), link.redeem("")) == (True, False, False)
    first, second = link.issue(), link.issue()
    assert (link.redeem(first), link.redeem(second)) == (False, True)
    token = link.issue()
    now = LIFE_S
    assert not link.redeem(token)


@pytest.mark.parametrize(
    ("address", "host", "status"),
    [
        ("127.0.0.1", "localhost:8000", 200),
        ("::1", "[::1]:8000", 200),
        ("192.0.2.7", "localhost:8000", 403),
        ("127.0.0.1", "evil.example", 403),
    ],
)
def test_the_key_is_given_near_alone(address: str, host: str, status: int, tmp_path: Path) -> None:
    core = FakeCore(tmp_path, Settings(store="ram://", data=tmp_path))
    core.control.keys = {"kvw_admin": principal("k1")}
    (tmp_path / ADMIN_KEY).write_text("kvw_admin\n")
    token = core.link.issue()
    with application_over(as_core(core), create_app) as app, TestClient(app, client=(address, 5000)) as client:
        answer = client.post("/console/key", json={"token": token}, headers={"host": host})
        again = client.post("/console/key", json={"token": token}, headers={"host": host})
    assert answer.status_code == status and again.status_code == 403
    if status == 200:
        assert (answer.json(), answer.headers["cache-control"]) == ({"key": "kvw_admin"}, "no-store")
    else:
        assert core.link.redeem(token), "who may not come in uses nothing up"


def test_a_link_gives_no_key_that_is_revoked(tmp_path: Path) -> None:
    core = FakeCore(tmp_path, Settings(store="ram://", data=tmp_path))
    (tmp_path / ADMIN_KEY).write_text("kvw_revoked\n")
    token = core.link.issue()
    with (
        application_over(as_core(core), create_app) as app,
        TestClient(app, client=("127.0.0.1", 5000), base_url="http://localhost") as client,
    ):
        answer = client.post("/console/key", json={"token": token})
    assert (answer.status_code, "kvw_revoked" in answer.text) == (403, False)
    assert token not in answer.text
