"""The README's examples and the notebook-style one run as they stand."""

import re
from pathlib import Path

from clients.tests.readme import PRINTED, Service, run_examples, run_script
from kvweave_client import Client

DISTRIBUTION = Path(__file__).resolve().parents[2]


def test_the_examples_of_the_readme_run(own_service: Service) -> None:
    try:
        blocks = run_examples(DISTRIBUTION / "README.md", own_service)
    finally:
        with Client(own_service.base_url, own_service.key) as client:
            for name in ("letters", "beside"):
                client.delete_collection(name)
    printed = "".join(str(block[PRINTED]) for block in blocks)
    assert printed.count("badger") >= 5 and "lamps" in printed
    [(reused, tokens)] = re.findall(r"^(\d+) of (\d+)$", printed, re.MULTILINE)
    assert 0 < int(reused) < int(tokens)
    assert "2024 Letter 40 stored" in printed


def test_the_example_runs_and_prints_what_was_reused(own_service: Service) -> None:
    lines = run_script(DISTRIBUTION / "examples" / "rag.py", own_service)
    told = {name: [line for line in lines if line.startswith(name)] for name in ("ordinary", "by chunk", "foreign")}
    assert {name: len(found) for name, found in told.items()} == {"ordinary": 2, "by chunk": 1, "foreign": 3}
    for line in (line for found in told.values() for line in found):
        reused, tokens = map(int, re.findall(r"(\d+) of +(\d+) tokens", line)[0])
        assert 0 < reused <= tokens
    answers = [line.split()[-1] for line in (*told["ordinary"], *told["foreign"])]
    assert answers == ["badger", "Belford", "badger", "Belford", "Rosen"]
    assert lines[-1] == "badger"
