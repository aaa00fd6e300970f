"""`kvweave precompute`: store and catalog are what the corpus says, however often it runs, however it was stopped."""

import json
import os
import random
import signal
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest

from retriever.catalog.sqlite import SqliteCatalog
from retriever.filter_condition import EVERYTHING
from service.documents.corpus_listing import CorpusFile, files
from store.errors import Miss
from store.reader import BlobReader
from store.url import open_store
from tests.service.passages import PASSAGES, QUESTIONS
from tests.service.serving import Json, Service, ask, good, kvweave, kvweave_ended

KILLS = 3


def corpus(folder: Path, *, files: int = 6) -> Path:
    """Files of several kinds; the demo's passages among them."""
    chance = random.Random(5)
    root = folder / "corpus"
    (root / "deep").mkdir(parents=True)
    for number in range(files):
        words = " ".join(chance.choices(["river", "lamp", "coin", "harbor", "signal"], k=chance.randint(20, 200)))
        (root / "deep" / f"{number}.md").write_text(f"# Part {number}\n\n{words}.\n", encoding="utf-8")
    for number, passage in enumerate(PASSAGES):
        (root / f"{number} {passage.title}.txt").write_text(passage.text, encoding="utf-8")
    lines = [{"id": f"line-{number}", "text": f"Line {number} of a register."} for number in range(3)]
    (root / "register.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return root


class Place:
    """A data folder and a store of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings = {"KVWEAVE_DATA": f"{folder}/data", "KVWEAVE_STORE": f"lmdb://{folder}/store"}

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        environment, pipe = {**os.environ, **self.settings}, subprocess.PIPE
        return kvweave("precompute", *arguments, "--json", env=environment, stdout=pipe, stderr=pipe)

    def run(self, *arguments: str, status: int = 0) -> Json:
        """The last event."""
        done = kvweave_ended("precompute", *arguments, "--json", status=status, **self.settings)
        return json.loads(done.stdout.splitlines()[-1]) if done.stdout else {"error": done.stderr}

    def holds(self) -> tuple[dict[str, bytes], dict[str, list[str]]]:
        return held(self.folder / "data", self.settings["KVWEAVE_STORE"])


def held(data: Path, url: str) -> tuple[dict[str, bytes], dict[str, list[str]]]:
    """Every blob of the store, but for when it was begun, and every document's chunks."""
    with closing(SqliteCatalog(data / "tenants/default/catalog.sqlite")) as catalog, catalog.view() as view:
        entries = view.documents(EVERYTHING, limit=1 << 30)
        documents = {each.id: [passage.text for passage in view.passages(each.id)] for each in entries}
    with open_store(url) as store:
        return {entry.key.text: frames(store.open(entry.key)) for entry in store.entries()}, documents


def frames(found: BlobReader | Miss) -> bytes:
    assert isinstance(found, BlobReader), found
    return b"".join(map(bytes, found.blob().frames))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Place, Json]:
    folder = tmp_path_factory.mktemp("undisturbed")
    root, place = corpus(folder), Place(folder)
    return root, place, place.run(str(root))


def test_a_corpus_becomes_documents_whose_chunks_are_all_stored(undisturbed: tuple[Path, Place, Json]) -> None:
    _, place, done = undisturbed
    blobs, documents = place.holds()
    assert done["documents"] == len(documents) == 6 + len(PASSAGES) + 3
    assert {"corpus/deep/0.md", "corpus/0 Register 12.txt", "line-2"} <= documents.keys()
    assert len(blobs) == done["stored"] == len({text for texts in documents.values() for text in texts})
    assert not done["problems"] and done["raw_bytes"] > 2 * done["nbytes"] > 0


def test_what_was_killed_goes_on_to_the_same_end(tmp_path: Path, undisturbed: tuple[Path, Place, Json]) -> None:
    root, whole, _ = undisturbed
    place, chance = Place(tmp_path), random.Random(int(time.time()))
    for _ in range(KILLS):  # while it starts, reads, computes or serves
        process = place.start(str(root))
        time.sleep(chance.uniform(0.0, 2.0))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    place.run(str(root))
    assert place.holds() == whole.holds()


def test_a_running_service_finds_what_is_put_in_beside_it(tmp_path: Path) -> None:
    root, place = corpus(tmp_path, files=2), Place(tmp_path)
    with Service(tmp_path) as service, service.client() as client:
        assert place.run(str(root))["stored"] > 0
        answer = ask(client, QUESTIONS[0])
        assert answer["answer"] == "badger"
        assert {chunk["source"] for chunk in answer["report"]["chunks"]} == {"lmdb"}
        assert good(client.get("/v1/documents", params={"limit": 100}))["documents"]


def test_a_forecast_says_what_the_run_then_does_and_stores_nothing(tmp_path: Path) -> None:
    root, place = corpus(tmp_path), Place(tmp_path)
    told = place.run(str(root), "--dry-run", "--price-per-tb", "1000000")
    assert place.holds() == ({}, {})
    done = place.run(str(root))
    assert (told["documents"], told["chunks"], told["tokens"]) == (done["documents"], done["chunks"], done["tokens"])
    assert 0.7 < told["nbytes"] / done["nbytes"] < 1.4 and told["seconds"] > 0
    assert told["month_cost"] == pytest.approx(told["nbytes"] / 1e6)
    again = place.run(str(root), "--dry-run")
    assert (again["tokens"], again["present"], again["unchanged"]) == (0, done["chunks"], done["files"])


def test_files_of_one_name_are_told_apart_by_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder / "sub").mkdir(parents=True)
        (tmp_path / folder / "sub" / "a.txt").write_text(folder)
    monkeypatch.chdir(tmp_path)

    def names(*given: str) -> list[str]:
        return [each.name for each in files(given) if isinstance(each, CorpusFile)]

    assert names("one/sub/a.txt", "two/*/a.txt", "./two") == ["one/sub/a.txt", "two/sub/a.txt"]
    assert names(str(tmp_path / "one")) == ["one/sub/a.txt"]
    assert names("one/sub", "two/sub") == ["sub/a.txt", "two/sub/a.txt"]
