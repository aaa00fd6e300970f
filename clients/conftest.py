"""What the clients' tests talk to: a service that is named, one that is started here, or a server with a script."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import pytest
from hypothesis import HealthCheck, settings

from clients.tests.scripted import Scripted, scripted

# How long an example takes, and how long it takes to draw one, is this machine's matter.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

URL, KEY = "KVWEAVE_BASE_URL", "KVWEAVE_API_KEY"


@dataclass(frozen=True, slots=True)
class Running:
    """A service with the built-in model, and an operator's key of it."""

    base_url: str
    key: str


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The service that all tests share, each in collections of its own. An environment without the server names one."""
    yield from _running(tmp_path_factory)


@pytest.fixture(scope="module")
def own_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service for one file of tests alone, where one can be started: nobody else's documents are found in it."""
    yield from _running(tmp_path_factory)


def _running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    if URL in os.environ:
        yield Running(os.environ[URL], os.environ[KEY])
        return
    from tests.service.serving import in_process, settings_in

    with in_process(settings_in(tmp_path_factory.mktemp("service"))) as inside:
        yield Running(inside.base_url, inside.key)


@pytest.fixture
def server() -> Iterator[Scripted]:
    """Does what a script says; requests that the script does not expect fail the test."""
    with scripted() as server:
        yield server
    assert server.errors == []


@pytest.fixture(scope="session")
def _numbers() -> Iterator[int]:
    return count(os.getpid() * 1000)


@pytest.fixture
def collection(_numbers: Iterator[int]) -> str:
    """A name that no other test has."""
    return f"tests-{next(_numbers)}"
