"""Backups that an earlier release made restore for ever, with their catalogs, keys, contexts and blobs."""

import json
from pathlib import Path
from typing import Any

import pytest

from service.access.principal import Role
from service.model.prompt_builder import SYSTEM
from service.truth.restore import restore
from store.url import open_store
from tests.service.golden import make
from tests.service.serving import in_process


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
