"""A large upload whose service is killed again and again goes on where it was stopped, and computes no chunk twice."""

from pathlib import Path
from random import Random

import pytest

from store.key import Scope
from store.url import open_store
from tests.service.checkpoints import small
from tests.service.serving import Service, finished, good, sampled, wait_for

CAPTURED = 'kvweave_captured_chunks_total{tenant="default"}'


def stored(folder: Path) -> set[str]:
    """The chunks that the store holds."""
    with open_store(f"lmdb://{folder}/store") as store:
        return {entry.key.chunk for entry in store.entries(Scope("default"))}


OFTEN = [pytest.param(25, 128, seed, marks=pytest.mark.long) for seed in range(4)]


@pytest.mark.parametrize(("times", "each", "seed"), [(2, 48, 8), *OFTEN])
def test_a_large_upload_goes_on_where_it_was_killed(times: int, each: int, seed: int, tmp_path: Path) -> None:
    """So many sentences for each kill, which comes when at most as many chunks are computed."""
    chance, service = Random(seed), Service(tmp_path, model=small(), chunk_tokens=16)
    text = " ".join(f"Kelo {chance.randrange(10**6)} lives in house {at}." for at in range(each * (times + 2)))
    service.start()
    try:
        with service.client() as client:
            body = {"documents": [{"id": "large", "text": text}]}
            job = good(client.post("/v1/documents", json=body))["job_id"]
        before = set[str]()
        for _ in range(times):
            least, captured = chance.randint(1, each), 0.0

            def has_more(least: int = least) -> bool:
                nonlocal captured
                with service.client() as client:
                    captured = sampled(client).get(CAPTURED, 0.0)
                return captured >= least

            wait_for(has_more, "some chunks are computed", log=service.log)
            service.kill()
            now = stored(tmp_path)
            assert before <= now and len(now - before) >= captured
            before = now
            service.start()
        with service.client() as client:
            done = finished(client, job)["items"][0]
            assert (done["state"], done["stored"]) == ("ready", done["chunks"])
            assert sampled(client)[CAPTURED] == done["chunks"] - len(before) > 0
        assert service.terminate() == 0
    finally:
        if service.process is not None:
            service.kill()
    assert len(stored(tmp_path)) == done["chunks"]
