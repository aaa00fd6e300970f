"""A service that is killed while fillers and neighbours are deleted keeps nothing of them, and captures all anew."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from random import Random

import httpx
import pytest

from retriever.catalog.sqlite import SqliteCatalog
from retriever.filter_condition import EVERYTHING
from service.documents.chunk_contexts import ChunkContexts
from store.key import Scope
from store.url import open_store
from tests.service.killed import Killed
from tests.service.serving import Json, good, put_in, wait_for
from tests.service.test_kill import ending

SEED = 11
BOOKS = range(8)
SHARED = {"text": "The same words stand in several books, and mean the same wherever they are read."}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Killed]:
    with ending(Killed(tmp_path, log=tmp_path / "service.log")) as service:
        yield service


def book(number: int, chance: Random) -> Json:
    """Its third chunk is other books', too, behind another."""
    parts = [{"text": f"Page {at} of day {chance.randrange(10**6)} tells how Selark sold lamps."} for at in range(4)]
    return {"id": f"b{number}", "title": f"Book {number}", "chunks": [*parts[:2], SHARED, *parts[2:]]}


def change(client: httpx.Client, chance: Random) -> None:
    """A filler's document goes, then another document, and one is edited: its next chunk stands behind another."""
    filler = [each["document_id"] for each in good(client.get("/v1/collections/default"))["filler"]]
    edited = book(chance.choice(BOOKS), chance)
    for name in (chance.choice(filler or ["b0"]), f"b{chance.choice(BOOKS)}"):
        client.delete(f"/v1/documents/{name}")
    client.post("/v1/documents", json={"documents": [edited]})


def check(service: Killed) -> None:
    """In the end there is a record of each chunk's context, and none of any context in which no chunk stands."""
    path = service.data / "tenants/default/catalog.sqlite"
    with closing(SqliteCatalog(path)) as catalog, open_store(service.store) as store:
        contexts = ChunkContexts(catalog, domain_fields=frozenset)

        def is_settled() -> bool:
            with catalog.view() as view:
                if view.moved(1, swept=False) or view.moved(1, swept=True):
                    return False
                names = [each.id for each in view.documents(EVERYTHING)]
                own = {contexts.key(passage) for name in names for passage in view.passages(name)}
                standing = contexts.standing(view, [key.chunk for key in own])
            best = {(key.chunk, name.digest) for key, name in contexts.named(own).items()}
            whole = {(key.chunk, digest) for key, (_, digests) in standing.items() for digest in digests}
            return best <= {(entry.key.chunk, entry.key.context) for entry in store.entries(Scope("default"))} <= whole

        wait_for(is_settled, "all is captured in its context, and nothing else is there", log=service.log)


@pytest.mark.parametrize("times", [2, pytest.param(60, marks=pytest.mark.long)])
def test_a_service_killed_while_texts_go_keeps_nothing_of_them_and_captures_anew(times: int, service: Killed) -> None:
    chance = Random(SEED)
    service.start()
    while service.kills < times:
        with service.client() as client:
            there = {each["id"] for each in good(client.get("/v1/documents"))["documents"]}
            if lacking := [book(number, chance) for number in BOOKS if f"b{number}" not in there]:
                put_in(client, lacking)
            check(service)
            late = threading.Timer(chance.random() / 2, service.kill)
            late.start()
            with suppress(httpx.TransportError):
                while True:
                    change(client, chance)
        late.join()
        service.start()
        check(service)
