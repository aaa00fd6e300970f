"""A running service and OpenAI's own client in front of it, for tests of vector stores and of files in them."""

from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from service.access.principal import Role
from tests.service.checkpoints import small
from tests.service.official import official
from tests.service.serving import Inside, in_process, settings_in

BADGER, HERON = b"Halio keeps a badger in the shed.", b"Mirel keeps a heron by the river."


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    with in_process(settings_in(tmp_path_factory.mktemp("service"), model=small())) as service:
        yield service


@pytest.fixture
def client(service: Inside) -> Iterator[OpenAI]:
    """Nothing is left of the test before."""
    with official(service) as client:
        for store in client.vector_stores.list():
            client.vector_stores.delete(store.id)
        for file in client.files.list():
            client.files.delete(file.id)
        yield client


def bound(service: Inside, **where: object) -> OpenAI:
    """A client whose key has this filter."""
    return official(service, key=service.core.control.create_key("default", Role.WRITE, bound=where)[1])


def found(client: OpenAI, store: str, query: str = "Who keeps it?", **more: Any) -> list[str]:  # noqa: ANN401
    """The ids of the files in which a search finds something."""
    return [each.file_id for each in client.vector_stores.search(store, query=query, **more)]
