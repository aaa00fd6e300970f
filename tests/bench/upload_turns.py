"""Measures what small uploads feel of a large one: `python -m tests.bench.upload_turns --megabytes 5` prints JSON.

A service with the built-in model. `small` are uploads of one sentence, one after the other, with the seconds until each
is ready: of another tenant and of the same, first alone, then while one text of so many megabytes is on its way, for
`--seconds`. One that is not ready after `LONGEST_S` is given up, and counts as that. `large_per_s`: the chunks of the
large one that were stored in a second, alone and beside the small ones; `resident_mb`: the service's memory before it
came and then. `cancel_s` and `delete_s`: how long these take
of what is on its way.
"""

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator
from itertools import count

import httpx
import numpy as np

from service.access.principal import Role
from tests.bench.serving import Json, resident_mb, server, until

LONGEST_S = 70.0


def sentences(seed: int) -> Iterator[str]:
    drawn = random.Random(seed)
    for number in count():
        yield f"Kelo {drawn.randrange(10**6)} lives in house {number} of Sunel, and keeps {drawn.randrange(10**4)}. "


def text_of(megabytes: float, seed: int) -> str:
    found, length = list[str](), 0
    for sentence in sentences(seed):
        found.append(sentence)
        length += len(sentence)
        if length > megabytes * 1e6:
            return "".join(found)
    raise AssertionError


def put(client: httpx.Client, name: str, text: str) -> str:
    body = {"documents": [{"id": name, "text": text}]}
    return client.post("/v1/documents", json=body).raise_for_status().json()["job_id"]


def job_of(client: httpx.Client, job: str) -> Json:
    return client.get(f"/v1/jobs/{job}").raise_for_status().json()


def small_s(client: httpx.Client, name: str) -> float:
    """Seconds until a document of one sentence is ready."""
    start = time.perf_counter()
    job = put(client, name, f"Mirel sells map {name} in Odan, and nobody else has any.")
    while time.perf_counter() - start < LONGEST_S:
        if job_of(client, job)["status"] == "done":
            return time.perf_counter() - start
        time.sleep(0.02)
    return LONGEST_S


def for_a_while(seconds: float, clients: dict[str, httpx.Client], *, named: str) -> Json:
    """Small uploads of all, in turns."""
    end, took = time.perf_counter() + seconds, {name: list[float]() for name in clients}
    for number in count():
        for name, client in clients.items():
            took[name].append(small_s(client, f"{named}-{number}"))
            if time.perf_counter() > end:
                return {name: told(found) for name, found in took.items() if found}
    raise AssertionError


def told(found: list[float]) -> Json:
    p50, p95 = (round(float(np.percentile(found, each)), 2) for each in (50, 95))
    return {"count": len(found), "p50_s": p50, "p95_s": p95, "most_s": round(max(found), 2)}


class Progress:
    """How many chunks of a job were stored in a second, since it was looked last."""

    def __init__(self, client: httpx.Client, job: str) -> None:
        self._client, self._job = client, job
        self._last = job_of(client, job)["stored"], time.perf_counter()

    def per_s(self) -> float:
        before, since = self._last
        self._last = job_of(self._client, self._job)["stored"], time.perf_counter()
        return round((self._last[0] - before) / (self._last[1] - since), 1)


def timed(call: Callable[[], httpx.Response]) -> float:
    start = time.perf_counter()
    call().raise_for_status()
    return round(time.perf_counter() - start, 2)


def measure(arguments: argparse.Namespace) -> Json:
    with server(arguments.threads, "builtin") as ran:
        key = ran.key_of("other", Role.WRITE)
        same, other = (
            httpx.Client(base_url=ran.url, headers={"Authorization": f"Bearer {each}"}, timeout=600)
            for each in (ran.key, key)
        )
        with same, other:
            clients = {"other_tenant": other, "same_tenant": same}
            alone = for_a_while(arguments.seconds / 4, clients, named="alone")
            memory = [resident_mb(ran.pid)]
            large = put(same, "large", text_of(arguments.megabytes, 1))
            begun = time.perf_counter()
            first = for_a_while(5, {"other_tenant": other}, named="first")
            until(lambda: job_of(same, large)["stored"] > 0, seconds=600)
            begun_s = round(time.perf_counter() - begun, 1)
            progress = Progress(same, large)
            time.sleep(arguments.seconds / 4)
            lone = progress.per_s()
            small = for_a_while(arguments.seconds, clients, named="beside")
            memory.append(resident_mb(ran.pid))
            beside, left = progress.per_s(), job_of(same, large)
            cancel_s = timed(lambda: same.delete(f"/v1/jobs/{large}"))
            again = put(same, "again", text_of(arguments.megabytes, 2))
            until(lambda: job_of(same, again)["stored"] > 500, seconds=600)
            deleted = timed(lambda: same.delete("/v1/documents/again"))
            after = small_s(other, "after")
    return {
        "small": {"alone": alone, "at_its_begin": first, "beside": small, "after_a_delete_s": round(after, 2)},
        "large": {"chunks": left["chunks"], "stored": left["stored"], "begun_s": begun_s, "per_s": [lone, beside]},
        "resident_mb": memory,
        "cancel_s": cancel_s,
        "delete_s": deleted,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=5)
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--threads", type=int, default=1)
    print(json.dumps(measure(parser.parse_args()), indent=2))


if __name__ == "__main__":
    main()
