"""The README's examples run as they stand."""

import re
from pathlib import Path
from typing import Any

import pytest

from clients.tests.readme import PRINTED, run_examples
from kvweave_client import Client, KVWeaveError

PACKAGE = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def printed(own_service: Any, tmp_path_factory: pytest.TempPathFactory) -> str:  # noqa: ANN401
    """By all examples, one after the other. What they put in is taken out again."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("readme")
        folder.joinpath("handbook.md").write_text("# Handbook\n\nLamps are made by Norworks.\n")
        patch.chdir(folder)
        try:
            namespaces = run_examples(PACKAGE / "README.md", own_service)
        finally:
            with Client(own_service.base_url, own_service.key) as client:
                for document in ("letter/40", "handbook.md", "note.txt"):
                    client.delete_document(document)
    return "\n".join(str(each[PRINTED]) for each in namespaces)


@pytest.mark.parametrize(
    "line",
    [
        "badger\n",
        "badger ['letter/40'",
        "tokens of the prompt came from the cache",
        "badger (2 tokens)",
        "bytes",
        "note.txt {'year': 2025} ['stored']",
        "422: top_k: Input should be greater than or equal to 1 (request ",
        "ready",
    ],
)
def test_an_example_prints_what_the_readme_says(printed: str, line: str) -> None:
    assert line in printed


def test_every_method_and_error_is_in_the_readme() -> None:
    text = (PACKAGE / "README.md").read_text(encoding="utf-8")
    inner = {"run", "each", "stream", "course", "events"}
    methods = {name for name in vars(Client) if not name.startswith("_")} - inner
    ours = [each for each in KVWeaveError.__subclasses__() if each.__module__.startswith("kvweave_client.")]
    errors = {each.__name__ for each in ours} - {"ServiceError"}
    assert [name for name in sorted(methods | errors) if not re.search(rf"\b{name}\b", text)] == []
