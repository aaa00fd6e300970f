"""The README's examples and the notebook-style one run as they stand."""

import gc
import os
import re
from pathlib import Path

import pytest

from clients.conftest import URL
from clients.tests.readme import PRINTED, Service, run_examples, run_script
from kvweave_client import Client

pytest.importorskip("llama_index.retrievers.kvweave")

DISTRIBUTION = Path(__file__).resolve().parents[1]
DATABASE = "ignore:.*aiosqlite.*was deleted before being closed:ResourceWarning"  # LlamaIndex's own memory


@pytest.mark.filterwarnings(DATABASE, "ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_examples_of_the_readme_run(own_service: Service) -> None:
    try:
        printed = "".join(str(block[PRINTED]) for block in run_examples(DISTRIBUTION / "README.md", own_service))
    finally:
        with Client(own_service.base_url, own_service.key) as client:
            client.delete_collection("letters")
    gc.collect()  # that memory, here and not in another test
    assert printed.count("badger") >= 5
    [(reused, tokens)] = re.findall(r"^(\d+) of (\d+) tokens", printed, re.MULTILINE)
    assert 0 < int(reused) < int(tokens)


def test_the_example_runs_and_prints_what_was_reused(own_service: Service) -> None:
    lines = run_script(DISTRIBUTION / "examples" / "rag.py", own_service)
    told = {name: [line for line in lines if line.startswith(name)] for name in ("by", "in a", "foreign", "chat", "no")}
    assert [len(found) for found in told.values()] == [3, 2, 3, 3, 1]
    reused = {name: [int(re.findall(r"\d+", line)[0]) for line in found] for name, found in told.items()}
    assert all(count > 60 for name, found in reused.items() for count in found if name != "no")
    assert reused["no"][0] < (30 if URL in os.environ else 10), "of a service for all tests, how others' prompts begin"
    for name in ("by", "foreign"):
        assert [line.rpartition(" ")[2] for line in told[name]] == ["badger", "Belford", "Rosen"]
