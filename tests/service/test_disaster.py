"""What is left after everything is lost but a backup, and what an older release left: the same answers."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from service.access.principal import Role
from service.model.prompt_builder import SYSTEM
from service.truth.restore import restore
from store.url import open_store
from tests.service.golden import make
from tests.service.passages import PASSAGES, QUESTIONS
from tests.service.serving import Json, Service, ask, good, in_process, kvweave_ended, put_in


def documents() -> list[Json]:
    return [
        {"id": f"p{number}", "title": each.title, "text": each.text, "metadata": {"place": number}}
        for number, each in enumerate(PASSAGES)
    ]


def command(service: Service, *arguments: str) -> None:
    kvweave_ended(*arguments, KVWEAVE_DATA=str(service.data), KVWEAVE_STORE=store_of(service))


def store_of(service: Service) -> str:
    return f"lmdb://{service.data.parent}/store"


def told(service: Service, key: str) -> list[Json]:
    """What a client gets to see: answers, their sources with scores, and all documents with their metadata."""
    with service.client(key) as client:
        answers = [ask(client, question) for question in QUESTIONS]
        listed = good(client.get("/v1/documents"))["documents"]
    return [{name: each[name] for name in ("answer", "sources", "finish_reason")} for each in answers] + listed


def origins(service: Service, key: str) -> set[str]:
    """Where the chunks of an answer come from."""
    with service.client(key) as client:
        return {chunk["source"] for chunk in ask(client, QUESTIONS[0])["report"]["chunks"]}


def test_backup_destroy_restore_gives_the_same_answers(tmp_path: Path) -> None:
    """With the blobs and without, of which those that are asked for are computed anew."""
    archives = {"lmdb": tmp_path / "blobs.tar.zst", "computed": tmp_path / "texts.tar.zst"}
    with Service(tmp_path) as service:
        key = service.key
        with service.client() as client:
            put_in(client, documents())
        before = told(service, key)
        command(service, "backup", str(archives["lmdb"]), "--blobs")
        command(service, "backup", str(archives["computed"]))
    for origin, archive in archives.items():
        shutil.rmtree(tmp_path / "data")
        shutil.rmtree(tmp_path / "store")
        command(service, "restore", str(archive))
        with service:
            assert origins(service, key) == {origin}
            assert told(service, key) == before


@pytest.mark.parametrize("name", sorted(each.stem for each in make.FOLDER.glob("*.json")))
def test_an_earlier_backup_is_a_service_again_that_computes_nothing_anew(tmp_path: Path, name: str) -> None:
    expected = json.loads((make.FOLDER / f"{name}.json").read_bytes())
    settings = make.settings(tmp_path)
    restore(make.FOLDER / f"{name}.tar.zst", settings.data, open_store=lambda: open_store(settings.store))
    with in_process(settings) as inside:
        found: dict[str, object] = {"keys": make.keys(inside)}
        for tenant in ("default", make.TENANT):
            with inside.client(inside.core.control.create_key(tenant, Role.READ)[1]) as client:
                found[tenant] = _as_told(make.told(client), expected[tenant])
        assert found == expected
    assert all(
        stored
        for tenant in ("default", make.TENANT)
        for each in expected[tenant]["stored"].values()
        for _, stored in each
    )


def _as_told(found: dict[str, Any], earlier: dict[str, Any]) -> dict[str, object]:
    """Without the rules of collections that the earlier release did not know; its own system prompt it did not tell."""
    pairs = zip(found["collections"], earlier["collections"], strict=True)
    known = [{name: now[name] for name in then} for now, then in pairs]
    return {
        **found,
        "collections": [{**each, "system": None if each["system"] == SYSTEM else each["system"]} for each in known],
    }
