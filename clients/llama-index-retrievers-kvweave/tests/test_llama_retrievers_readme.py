"""The README's examples run as they stand."""

from pathlib import Path

import pytest

from clients.tests.readme import PRINTED, Service, run_examples
from kvweave_client import Client

README = Path(__file__).resolve().parents[1] / "README.md"


@pytest.fixture(scope="module")
def service(own_service: Service) -> Service:
    """A service of this file's own: other documents would weigh in the ranks of words."""
    return own_service


def test_the_examples_of_the_readme_run(service: Service) -> None:
    try:
        blocks = run_examples(README, service)
    finally:
        with Client(service.base_url, service.key) as client:
            for name in ("letters", "beside"):
                client.delete_collection(name)
    assert "Halio keeps a badger. Letter 40 stored" in str(blocks[0][PRINTED])
