"""An embedder that is new to the documents of a service: their vectors are made behind its back."""

from pathlib import Path

import pytest

from service.app import composition
from service.documents import ingest
from tests.retriever.fakes import WordEmbedder
from tests.service.passages import PASSAGES, QUESTIONS
from tests.service.serving import good, in_process, put_in, settings_in, wait_for


def test_documents_of_before_get_their_vectors_without_a_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "IDLE_S", 1e6)
    monkeypatch.setattr(ingest, "EMBEDDED", 1)
    settings = settings_in(tmp_path)
    body = {"query": QUESTIONS[0], "mode": "vector"}
    with in_process(settings) as inside, inside.client() as client:
        put_in(client, [{"id": str(at), "chunks": [{"text": each.text}]} for at, each in enumerate(PASSAGES)])
        assert "needs an embedder" in client.post("/v1/search", json=body).json()["detail"]
    embedder = WordEmbedder()
    embedder.refused = PASSAGES[-1].text
    monkeypatch.setattr(composition, "compose_embedder", lambda settings: embedder)  # pyright: ignore[reportUnknownLambdaType]
    with in_process(settings) as inside, inside.client() as client:
        wait_for(lambda: len(embedder.seen) == len(PASSAGES) - 1, "all but one have their vectors")
        waits = client.post("/v1/search", json=body)
        assert waits.status_code == 422
        assert f"vectors of {len(PASSAGES) - 1} of {len(PASSAGES)} chunks are made" in waits.json()["detail"]
        good(client.post("/v1/search", json={**body, "mode": None}))
        embedder.refused = ""
        wait_for(lambda: client.post("/v1/search", json=body).is_success, "the last has its vector, and all serve")
