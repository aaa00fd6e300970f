"""Damage in the catalog of one tenant costs that tenant alone, and no text is served that was not put in."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.access.principal import Role
from service.documents import ingest
from tests.service.serving import Inside, Json, ask, good, in_process, put_in, settings_in

QUESTION = "Which animal does Quaxilor keep?"
TEXT = "Quaxilor lives in K7. Quaxilor keeps a badger."
DAMAGED = {"header": 0, "page size": 10, "schema": 4080, "facts": 4096 + 8}


def catalog_file(folder: Path, tenant: str) -> Path:
    return folder / "data/tenants" / tenant / "catalog.sqlite"


def damage(file: Path, start: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(start)
        opened.write(random.Random(start).randbytes(16))


def document(name: str, *texts: str) -> Json:
    return {"id": name, "chunks": [{"text": text} for text in texts]}


@pytest.fixture
def damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Inside]:
    """A service in which every tenant but the default one is damaged in a way of its own, and has work to do."""
    monkeypatch.setattr(ingest, "PAUSE_S", 0.2)
    names = [name.replace(" ", "-") for name in DAMAGED]
    with in_process(settings_in(tmp_path)) as inside:
        for name in (*names, "default"):
            with inside.client(inside.core.control.create_key(name, Role.ADMIN)[1]) as client:
                put_in(client, [document("a", TEXT)])
    for name, start in zip(names, DAMAGED.values(), strict=True):
        damage(catalog_file(tmp_path, name), start)
    with in_process(settings_in(tmp_path)) as inside:
        yield inside


def test_a_damaged_catalog_is_its_tenants_503_and_the_others_serve(damaged: Inside) -> None:
    for name in DAMAGED:
        key = damaged.core.control.create_key(name.replace(" ", "-"), Role.ADMIN)[1]
        with damaged.client(key) as client:
            for answer in (
                client.get("/v1/documents"),
                client.post("/v1/query", json={"question": QUESTION}),
                client.post("/v1/documents", json={"documents": [document("b", TEXT)]}),
            ):
                assert (answer.status_code, "restore it from a backup" in answer.text) == (503, True), answer.text
    with damaged.client() as client:
        assert good(client.get("/readyz"))
        put_in(client, [document("b", "Norworks makes lamps.")])
        answer = ask(client, QUESTION)
        assert [each["text"] for each in answer["sources"]][:1] == [TEXT]
        assert answer["report"]["chunks"][0]["source"] == "lmdb"
