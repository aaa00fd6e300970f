"""The README's examples and the notebook-style one run as they stand."""

import gc
import re
import subprocess
import sys
from pathlib import Path

import pytest

from clients.tests.readme import PRINTED, Service, run_examples
from kvweave_client import Client

pytest.importorskip("llama_index.retrievers.kvweave")

DISTRIBUTION = Path(__file__).resolve().parents[1]
DATABASE = "ignore:.*aiosqlite.*was deleted before being closed:ResourceWarning"  # LlamaIndex's own memory


@pytest.fixture(scope="module")
def service(own_service: Service) -> Service:
    """A service of this file's own: other documents would weigh in the ranks of words."""
    return own_service


@pytest.mark.filterwarnings(DATABASE, "ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_examples_of_the_readme_run(service: Service) -> None:
    try:
        printed = "".join(str(block[PRINTED]) for block in run_examples(DISTRIBUTION / "README.md", service))
    finally:
        with Client(service.base_url, service.key) as client:
            client.delete_collection("letters")
    gc.collect()  # that memory, here and not in another test
    assert printed.count("badger") >= 5
    [(reused, tokens)] = re.findall(r"^(\d+) of (\d+) tokens", printed, re.MULTILINE)
    assert 0 < int(reused) < int(tokens)


def test_the_example_runs_and_prints_what_was_reused(service: Service) -> None:
    script = str(DISTRIBUTION / "examples" / "rag.py")
    command = [sys.executable, script, "--url", service.base_url, "--key", service.key]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    told = {name: [line for line in lines if line.startswith(name)] for name in ("by", "in a", "foreign", "chat", "no")}
    assert [len(found) for found in told.values()] == [3, 2, 3, 3, 1]
    reused = {name: [int(re.findall(r"\d+", line)[0]) for line in found] for name, found in told.items()}
    assert all(count > 60 for name, found in reused.items() for count in found if name != "no") and reused["no"][0] < 10
    for name in ("by", "foreign"):
        assert [line.rpartition(" ")[2] for line in told[name]] == ["badger", "Belford", "Rosen"]
    with Client(service.base_url, service.key) as client:
        assert not any(each.name.startswith("example-") for each in client.collections())
