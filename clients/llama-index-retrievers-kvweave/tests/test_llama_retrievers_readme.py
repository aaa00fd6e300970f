"""The README's examples run as they stand."""

from pathlib import Path

from clients.tests.readme import PRINTED, Service, run_examples
from kvweave_client import Client

README = Path(__file__).resolve().parents[1] / "README.md"


def test_the_examples_of_the_readme_run(own_service: Service) -> None:
    try:
        blocks = run_examples(README, own_service)
    finally:
        with Client(own_service.base_url, own_service.key) as client:
            for name in ("letters", "beside"):
                client.delete_collection(name)
    assert "Halio keeps a badger. Letter 40 stored" in str(blocks[0][PRINTED])
