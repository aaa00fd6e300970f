"""The description of the interface, held against the service: no answer that it does not tell of, and none that fails.

schemathesis runs as a process of its own, over HTTP, with every check that it has. What the rules of `schema_hooks`
let pass, and nothing else, is left out."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from openapi_spec_validator import validate

from service.access.principal import DEFAULT_TENANT, Role
from service.truth.control import Control
from tests.examples import examples_in
from tests.servers.models import model_server
from tests.service.passages import PASSAGES
from tests.service.schema_hooks import CHUNKS, DOCUMENT
from tests.service.schema_hooks import __name__ as hooks
from tests.service.serving import WAIT_S, Service, finished, good, in_process, put_in, settings_in

ROOT = Path(__file__).parents[2]
SCHEMATHESIS = (sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()")
LIMIT_S = 3600  # for broken products alone
BOUND = {"team": "a"}
CONFIG = """
continue-on-failure = true
[auth.wfc]
path = "{users}"
user = "{key}"
peers = ["{key}", "foreign"]  # neither may see what is the other's
[generation]
deterministic = true
database = "none"
max-examples = {examples}
[phases.coverage]
enabled = {coverage}
[checks]
max_response_time = {longest}
"""
WITHOUT_SETTING = ("/v1/rerank", "/v1/embeddings")  # as the page says
VALUES = ("job_id", "handle")


@dataclass(frozen=True, slots=True)
class Run:
    """Whose requests, and how many for each operation. `coverage`: the edges of all schemas too."""

    key: str
    examples: int
    coverage: bool = False

    def config(self, users: Path) -> str:
        """As a file of settings."""
        return CONFIG.format(
            users=users,
            key=self.key,
            examples=self.examples,
            coverage=json.dumps(self.coverage),
            longest=WAIT_S,
        )


@dataclass(frozen=True, slots=True)
class Served:
    """A service with something in it, the keys to it, and the ids of its chunks."""

    service: Service
    keys: dict[str, str]
    chunks: list[str]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("schema")
    with (
        model_server() as url,
        Service(folder, log_level="warning", embedder=f"{url}#words", reranker=f"{url}#longest") as service,
        service.client() as client,
    ):
        documents = [
            {
                "id": DOCUMENT if number == 0 else f"letter/{number}",
                "text": each.text,
                "title": each.title,
                "metadata": {"team": "ab"[number % 2]},
            }
            for number, each in enumerate(PASSAGES)
        ]
        put_in(client, documents)
        found = [good(client.get(f"/v1/documents/{quote(each['id'], safe='')}/chunks"))["chunks"] for each in documents]
        control = Control(service.data / "control.sqlite")
        keys = {
            "operator": service.key,
            "write": control.create_key(DEFAULT_TENANT, Role.WRITE)[1],
            "foreign": control.create_key("other", Role.ADMIN)[1],
            "bound": control.create_key(DEFAULT_TENANT, Role.READ, bound=BOUND)[1],
        }
        control.close()
        yield Served(service, keys, [chunk["chunk_id"] for chunks in found for chunk in chunks])


@pytest.mark.parametrize("piece", [b"x" * 1000, b"x" * 200_000])
def test_headers_without_an_end_are_cut_off(served: Served, piece: bytes) -> None:
    host, port = served.service.base_url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), WAIT_S) as connection, suppress(ConnectionError):
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nx-long: ")
        for _ in range(200):
            connection.sendall(piece)
        assert connection.recv(12) in (b"", b"HTTP/1.1 400")
    with served.service.client() as client:
        assert client.get("/healthz", headers={"x-long": "x" * 100_000}).status_code in (400, 431)


def test_a_head_within_its_bound_may_come_in_pieces(served: Served) -> None:
    host, port = served.service.base_url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), WAIT_S) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n")
        for number in range(50):
            connection.sendall(b"x-%d: %s\r\n" % (number, b"x" * 1000))
            time.sleep(0.01)  # so that they are read one by one
        connection.sendall(b"\r\n")
        assert connection.recv(12) == b"HTTP/1.1 200"


def test_the_description_is_valid(served: Served) -> None:
    with served.service.client() as client:
        description = good(client.get("/openapi.json"))
    validate(description)
    assert all(each in description["info"]["description"] for each in ("admin.key", "/v1/documents", "/v1/query"))


SHORT = [(Run("operator", 2), 60), (Run("bound", 1), 40)]
LONG = [
    (Run("write", 1), 50),
    (Run("operator", 60, coverage=True), 5000),
    *((Run(key, 20, coverage=True), 3000) for key in ("write", "bound")),
]


@pytest.mark.parametrize(("run", "least"), [*SHORT, *(pytest.param(*each, marks=pytest.mark.long) for each in LONG)])
def test_the_description_is_true(served: Served, tmp_path: Path, run: Run, least: int) -> None:
    assert cases(served, tmp_path, run) >= least


def cases(served: Served, folder: Path, run: Run) -> int:
    """Let it try; how many requests it thought of. A failure comes with all that it found."""
    config, users = folder / "schemathesis.toml", folder / "users.json"
    users.write_text(json.dumps({"auth": [_user(name, key) for name, key in served.keys.items()]}))
    config.write_text(run.config(users))
    environment = {
        **os.environ,
        CHUNKS: " ".join(served.chunks),
        "SCHEMATHESIS_HOOKS": hooks,
        "PYTHONPATH": str(ROOT),
    }
    description = f"{served.service.base_url}/openapi.json"
    command = [*SCHEMATHESIS, "--config-file", str(config), "run", description, "--no-color"]
    ended = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert ended.returncode == 0, f"{ended.stdout}{ended.stderr}"
    found = re.search(r"(\d+) generated", ended.stdout)
    assert found, ended.stdout
    return int(found[1])


def _user(name: str, key: str) -> dict[str, object]:
    return {"name": name, "fixedHeaders": [{"name": "Authorization", "value": f"Bearer {key}"}]}


def test_a_chat_without_a_word_is_answered(served: Served) -> None:
    body = {"model": "default", "messages": [{"role": "user", "content": ""}], "max_tokens": 1}
    with served.service.client() as client:
        assert good(client.post("/v1/chat/completions", json=body))["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize(
    ("status", "more"),
    [
        (200, {"max_tokens": 1.0, "n": 1.0}),
        (200, {"max_tokens": 1, "tools": [], "store": False}),
        *((400, more) for more in ({"tools": 0}, {"store": 0.0}, {"max_tokens": 1.5}, {"n": True})),
    ],
)
def test_a_chat_takes_what_json_holds_to_be_the_same_and_not_what_only_looks_so(
    served: Served, status: int, more: dict[str, object]
) -> None:
    body = {"model": "default", "messages": [{"role": "user", "content": "Where?"}], **more}
    with served.service.client() as client:
        assert client.post("/v1/chat/completions", json=body).status_code == status


@pytest.mark.parametrize("text", ["", " ", "\x1c", "\x85"])
def test_what_has_no_words_cannot_be_ranked(served: Served, text: str) -> None:
    with served.service.client() as client:
        for body in ({"query": text, "documents": ["a"]}, {"query": "a", "documents": ["a", text]}):
            assert client.post("/v1/rerank", json=body).status_code == 422


@pytest.mark.parametrize("top_k", [1, 250, 251, 1000])
def test_as_many_hits_as_can_be_asked_for_can_be_ranked(served: Served, top_k: int) -> None:
    with served.service.client() as client:
        good(client.post("/v1/search", json={"query": "animal", "top_k": top_k, "rerank": True}))


def test_each_example_is_answered(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "endpoints.md").read_text(encoding="utf-8")
    known: dict[str, str] = {}
    with in_process(settings_in(tmp_path)) as inside, inside.client() as client:
        for example in examples_in(page):
            path = filled(example.path, known)
            parts: Any = [(name, part(value)) for name, value in example.form] or None
            answer = client.request(example.method, path, json=example.body, files=parts)
            assert answer.is_success != (path in WITHOUT_SETTING), f"{example}: {answer.text}"
            if answer.headers.get("content-type", "") == "application/json":
                told = answer.json()
                known |= {name.removesuffix("_id").upper(): told[name] for name in VALUES if name in told}
                if told.get("object") == "response":
                    known["RESPONSE"] = told["id"]
                if "job_id" in told:
                    assert finished(client, told["job_id"])["status"] == "done"


def part(value: str) -> tuple[str | None, bytes]:
    """A field of a form, or a file."""
    name = value.removeprefix("@")
    return (None, value.encode()) if name == value else (name, (ROOT / name).read_bytes())


def filled(path: str, known: Mapping[str, str]) -> str:
    """With the values of its variables."""
    return re.sub(r"\$([A-Z]+)", lambda name: known[name[1]], path)
