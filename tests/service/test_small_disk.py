"""A service on disks that are really full: it refuses what it cannot keep, keeps what it took, and goes on later."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.demo import PASSAGES, QUESTIONS
from tests.service import serving
from tests.service.serving import KVWEAVE, Json, Service, finished, good, put_in

FOLDERS = ("store", "data/tenants")
QUESTION: Json = {"question": QUESTIONS[2], "blend": {"policy": "full"}, "sampling": {"max_tokens": 16}, "top_k": 2}
FIXED = [{"id": f"fixed {at}", "title": each.title, "text": each.text} for at, each in enumerate(PASSAGES)]
MOUNT = (
    'for each in store data/tenants; do mkdir -p "$0/$each" && mount -t tmpfs -o size=3m none "$0/$each" || exit 1; '
    'done; exec "$@"'
)


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """Its store and its catalogs stand on disks of 3 MB, which it alone sees."""
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        pytest.skip("needs the commands unshare and nsenter")
    apart = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", MOUNT)
    (tmp_path / "tried").mkdir()
    tried = subprocess.run([*apart, str(tmp_path / "tried"), "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {tried.stderr.strip()}")
    monkeypatch.setattr(serving, "KVWEAVE", (*apart, str(tmp_path), *KVWEAVE))
    with Service(tmp_path, dtype="float32", device="cpu", codec="lossless") as service:
        yield service


def give_room(service: Service, folder: Path) -> None:
    """A larger disk, as an operator would."""
    enter = ("nsenter", "--user", "--mount", "--preserve-credentials", "-t", str(service.pid))
    for each in FOLDERS:
        subprocess.run([*enter, "mount", "-o", "remount,size=64m", str(folder / each)], check=True)


@pytest.mark.long
def test_full_disks_lose_nothing_and_are_made_up_for(service: Service, tmp_path: Path) -> None:
    accepted: dict[str, list[str]] = {}
    with service.client() as client:
        put_in(client, FIXED)
        wanted = good(client.post("/v1/query", json=QUESTION))["answer"]
        for round_number in range(400):
            names = [f"d{round_number} {at}" for at in range(5)]
            documents = [
                {"id": name, "text": f"Kelo keeps a heron {name}.", "metadata": {"notes": [name * 20] * 60}}
                for name in names
            ]
            answer = client.post("/v1/documents", json={"documents": documents})
            if answer.status_code != 202:
                break
            accepted[answer.json()["job_id"]] = names
        assert (answer.status_code, "free some space" in answer.json()["detail"]) == (503, True), answer.text
        assert client.get(f"/v1/documents/{names[0]}").status_code == 404
        assert good(client.post("/v1/query", json=QUESTION))["answer"] == wanted
        assert client.delete("/v1/documents/fixed 3").status_code in (200, 503)
        give_room(service, tmp_path)
        for job, documents_of in accepted.items():
            ended = finished(client, job)
            assert (ended["status"], ended["uploads"]) == ("done", {"ready": len(documents_of)})
        assert client.delete("/v1/documents/fixed 3").status_code in (200, 404)
        for name in (name for names_of in accepted.values() for name in names_of):
            [chunk] = good(client.get(f"/v1/documents/{name}/chunks"))["chunks"]
            assert (chunk["text"], chunk["state"]) == (f"Kelo keeps a heron {name}.", "stored")
        assert good(client.post("/v1/query", json=QUESTION))["answer"] == wanted
    assert service.terminate() == 0
    assert "Traceback" not in service.text()
