"""The REST service over a store that answers, and over one that does not."""

from fastapi.testclient import TestClient

from service.app import create_app
from store.errors import StoreUnavailable
from store.memory import MemoryStore
from tests.store.samples import blob


class Unreachable(MemoryStore):
    """A store that cannot be asked anything."""

    def tenants(self) -> list[str]:
        raise StoreUnavailable("s3://bucket does not answer")


def test_a_service_over_a_store_is_ready_and_counts() -> None:
    store = MemoryStore()
    store.put(blob())
    with TestClient(create_app(lambda: store)) as client:
        assert client.get("/healthz").json() == {"status": "ok"}
        assert client.get("/readyz").status_code == 200
        (tier,) = client.get("/v1/stats").json()["store"]
        assert (tier["tier"], tier["blobs"], tier["nbytes"]) == ("ram", 1, blob().nbytes)


def test_a_service_over_an_unreachable_store_lives_but_is_not_ready() -> None:
    with TestClient(create_app(Unreachable)) as client:
        assert client.get("/healthz").status_code == 200
        answer = client.get("/readyz")
        assert answer.status_code == 503
        assert answer.headers["content-type"] == "application/problem+json"
        assert "s3://bucket" in answer.json()["detail"]
