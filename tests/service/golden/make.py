"""Writes a backup as this release makes it: `python -m tests.service.golden.make NAME`. What is there is never written
again.

It holds a tenant's and the administrator's documents, captured in context by the built-in model, with their blobs, and
`NAME.json` tells what stands in it.
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from service.access.principal import Role
from service.settings import Settings
from service.truth.backup import back_up
from store.url import open_store
from tests.service.serving import Inside, Json, good, in_process, put_in, settings_in

FOLDER = Path(__file__).parent
ANIMALS = {"Halio": "badger", "Belio": "pony", "Corina": "heron", "Dorano": "otter", "Elmar": "lynx"}
LETTERS: list[Json] = [
    {
        "id": f"letter-{number}",
        "title": f"Letter {number}",
        "metadata": {"number": number, "kind": "letter" if number % 2 else "note"},
        "chunks": [
            {"text": f"{name} lives in K{number}. {name} keeps a {animal}.", "metadata": {"place": f"K{number}"}}
        ],
    }
    for number, (name, animal) in enumerate(ANIMALS.items())
]
LETTERS[0]["chunks"] += [{"text": "The house has seven rooms, and a garden by the river."}]
OTHERS = LETTERS[1:2]
TENANT = "acme"
PROMPT = "Answer in one word."


def settings(folder: Path) -> Settings:
    """Of a service for the backup: the same numbers on any machine."""
    return settings_in(folder, dtype="float32", device="cpu")


def told(client: httpx.Client) -> dict[str, object]:
    """What the service tells of all that it holds, but for times."""
    collections = sorted(good(client.get("/v1/collections"))["collections"], key=lambda each: each["name"])
    documents = [*good(client.get("/v1/documents"))["documents"]]
    return {
        "collections": [_timeless(good(client.get(f"/v1/collections/{each['name']}"))) for each in collections],
        "documents": [_timeless(each) for each in sorted(documents, key=lambda each: each["id"])],
        "stored": {name: stored(client, name) for name in ANIMALS},
    }


def keys(inside: Inside) -> list[list[object]]:
    """What is told of keys, but for those of the administrator."""
    every = inside.core.control.keys()
    return [[each.id, each.tenant, each.role] for each in every if each.tenant == TENANT]


def stored(client: httpx.Client, name: str) -> list[list[object]]:
    """The chunks of a prompt, each with whether it came out of the store."""
    asked = {"question": f"Which animal does {name} keep?", "top_k": 3, "blend": {"policy": "reuse"}}
    chunks = good(client.post("/v1/query", json=asked))["report"]["chunks"]
    return [[each["chunk_id"], each["source"] != "computed"] for each in chunks]


def _timeless(said: Json) -> Json:
    return {name: each for name, each in said.items() if name not in ("created", "updated")}


def main() -> None:
    name = sys.argv[1]
    with TemporaryDirectory() as scratch:
        chosen = settings(Path(scratch))
        with in_process(chosen) as inside, inside.client() as client:
            good(client.put("/v1/collections/default", json={"system": PROMPT}))
            put_in(client, LETTERS)
            with inside.client(inside.core.control.create_key(TENANT, Role.WRITE)[1]) as acme:
                put_in(acme, OTHERS)
                found = {"default": told(client), TENANT: told(acme), "keys": keys(inside)}
        with open_store(chosen.store) as store:
            back_up(FOLDER / f"{name}.tar.zst", chosen.data, store=store)
    (FOLDER / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
