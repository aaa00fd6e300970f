"""The client distributions as users install them: wheels of the tree, in an environment without torch and server."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.clients.bare import CLIENTS, Wheel, build, environment
from tests.service.serving import in_process, settings_in

MODULES = {
    "kvweave-client": "kvweave_client",
    "langchain-kvweave": "langchain_kvweave",
    "llama-index-llms-kvweave": "llama_index.llms.kvweave",
    "llama-index-retrievers-kvweave": "llama_index.retrievers.kvweave",
    "vllm-kvweave": "vllm_kvweave",
}
ALLOWED = {
    "kvweave-client": {"anyio", "httpcore", "httpx", "msgspec"},
    "langchain-kvweave": {"kvweave-client", "langchain-core"},
    "llama-index-llms-kvweave": {"kvweave-client", "llama-index-core"},
    "llama-index-retrievers-kvweave": {"kvweave-client", "llama-index-core"},
    "vllm-kvweave": set(),
}
ABSENT = ("torch", "transformers", "store", "retriever", "blend", "service", "fastapi", "lmdb", "faiss")
LOOK = """
import importlib, importlib.util, json, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(json.dumps(sorted(name for name in {absent} if importlib.util.find_spec(name))))
"""
ASK = """
import sys
from kvweave_client import Client
with Client(*sys.argv[1:3]) as client:
    document = {"id": "letter", "text": "Halio lives in K7. Halio keeps a badger."}
    client.wait(client.put_documents([document]).job_id)
    answer = client.query("Which animal does Halio keep?")
    print(answer.answer, answer.usage.reused_tokens > 0)
"""

USE = """
from kvweave_client import Answer, Client, Token

with Client("http://localhost:8000", "key") as client:
    ids: list[str] = [document.id for document in client.documents(collection="x", filter={"year": 2024})]
    answer: Answer = client.query("Why?", top_k=3, blend={"policy": "hybrid"})
    with client.stream_query("Why?") as events:
        texts = [event.text for event in events if isinstance(event, Token)]
    client.query("Why?", topk=3)
"""


@dataclass(frozen=True, slots=True)
class Bare:
    """An environment of the clients alone."""

    python: Path

    def run(self, code: str, *arguments: str) -> str:
        """What the code prints; it sees nothing of the tree."""
        command = [str(self.python), "-I", "-c", code, *arguments]
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=120, check=False, cwd=self.python.parent
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.strip()


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Wheel]:
    return {folder.name: build(folder, into=tmp_path_factory.mktemp("wheels")) for folder in CLIENTS}


@pytest.fixture(scope="module")
def bare(wheels: dict[str, Wheel], tmp_path_factory: pytest.TempPathFactory) -> Bare:
    return Bare(environment(tmp_path_factory.mktemp("bare") / "env", wheels=list(wheels.values())))


def test_each_wheel_holds_its_package_alone_with_types_and_licence(wheels: dict[str, Wheel]) -> None:
    assert set(wheels) == set(MODULES)
    for name, wheel in wheels.items():
        package = MODULES[name].replace(".", "/")
        files = [file for file in wheel.names if ".dist-info/" not in file]
        assert all(file.startswith(f"{package}/") for file in files), files
        assert f"{package}/__init__.py" in files and f"{package}/py.typed" in files
        assert any(file.endswith("/LICENSE") for file in wheel.names)


def test_each_requires_little(wheels: dict[str, Wheel]) -> None:
    assert {name: {each.name for each in wheel.requires} for name, wheel in wheels.items()} == ALLOWED


def test_all_load_without_torch_and_without_the_server(bare: Bare) -> None:
    found = bare.run(LOOK.replace("{absent}", repr(ABSENT)), *MODULES.values())
    assert json.loads(found) == []


@pytest.fixture
def address(tmp_path: Path) -> Iterator[tuple[str, str]]:
    with in_process(settings_in(tmp_path)) as service:
        yield service.base_url, service.key


def test_the_client_asks_from_there(bare: Bare, address: tuple[str, str]) -> None:
    assert bare.run(ASK, *address) == "badger True"


def test_the_code_of_users_is_checked_strictly(bare: Bare, tmp_path: Path) -> None:
    (tmp_path / "use.py").write_text(USE)
    folder = bare.python.parent.parent
    rules = {"typeCheckingMode": "strict", "venvPath": str(folder.parent), "venv": folder.name}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(rules))
    command = [sys.executable, "-m", "pyright", "--outputjson", "-p", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    found = json.loads(ended.stdout)["generalDiagnostics"]
    assert ["topk" in each["message"] for each in found] == [True], found
