"""A client for each kind of key, over one application."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from service.access.principal import Principal, Role
from service.api.app import create_app
from service.settings import Settings
from tests.service.api.fakes import FakeCore, as_core, principal
from tests.service.lent import application_over

KEYS: dict[str, Principal] = {
    "operator": principal("k1"),
    "write": principal("k2", Role.WRITE),
    "read": principal("k3", Role.READ),
    "bound": principal("k4", Role.WRITE, bound={"team": "a"}),
    "bound-read": principal("k5", Role.READ, bound={"team": "a"}),
    "bound-admin": principal("k6", Role.ADMIN, bound={"team": "a"}),
    "foreign-admin": principal("k7", Role.ADMIN, tenant="other"),
}

Clients = Callable[[str], TestClient]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        store="ram://",
        data=tmp_path,
        max_body_bytes=20_000,
        max_documents=20,
        max_question_chars=100,
        max_requests=4,
    )


@pytest.fixture
def core(tmp_path: Path, settings: Settings) -> FakeCore:
    made = FakeCore(tmp_path, settings)
    made.control.keys = dict(KEYS)
    return made


@pytest.fixture
def as_key(core: FakeCore) -> Iterator[Clients]:
    """A client that holds this key; an empty name holds none."""
    with application_over(as_core(core), create_app) as app, TestClient(app, raise_server_exceptions=False) as first:

        def client(name: str) -> TestClient:
            headers = {"Authorization": f"Bearer {name}"} if name else {}
            return TestClient(app, headers=headers, raise_server_exceptions=False)

        assert first
        yield client


@pytest.fixture
def operator(as_key: Clients) -> TestClient:
    return as_key("operator")
