"""Three services under load while they, their database and their store fail: what was acknowledged holds on each."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.servers.hanging import HangingWay, hanging_way
from tests.servers.postgres import PostgresServer
from tests.servers.s3 import s3_server
from tests.service.serving import Json, Service, ask, client_of, good, put_in, wait_for

COUNT = 3
FAULTS = {"kill": 20, "freeze": 5, "restart": 5, "hang": 5, "store": 5}
PLACES = ("Aveiro", "Belfast", "Cadiz", "Delft", "Eger")
STEADY = {"policy": "hybrid", "ratio": 1.0}  # equals an exact prefill, whatever is stored
SECONDS = float(os.environ.get("REPLICA_SECONDS", "600"))

Failed = (httpx.TransportError, httpx.RemoteProtocolError)


class Field:
    """The services and what they stand on."""

    def __init__(self, folder: Path, postgres: PostgresServer, stack: ExitStack) -> None:
        self.postgres = postgres
        self.way = stack.enter_context(hanging_way(postgres.port))
        s3 = stack.enter_context(s3_server())
        self.store_way = stack.enter_context(hanging_way(urlsplit(s3.endpoint).port or 80))
        url = postgres.database().replace(f":{postgres.port}/", f":{self.way.port}/")
        lowest = s3.url("replicas", through=f"http://127.0.0.1:{self.store_way.port}", timeout_s=2)
        self.services: list[Service] = []
        for number in range(COUNT):
            home = folder / f"machine-{number}"
            home.mkdir()
            store = f"tiered:mem://?budget=64MB|{lowest}"
            self.services.append(Service(home, data=f"{url}#{home}/data", store=store))
        for each in self.services:
            stack.callback(self._end, each)
            each.start()
        self.key = self.services[0].key
        self.faults = Counter[str]()

    def _end(self, service: Service) -> None:
        if service.process is not None:
            service.process.send_signal(signal.SIGCONT)
            service.kill()

    def fail(self, kind: str, chance: random.Random) -> None:
        """Lets something fail, and be whole again."""
        self.faults[kind] += 1
        service = chance.choice(self.services)
        match kind:
            case "kill":
                service.kill()
                time.sleep(chance.random())
                service.start(ready=False)
            case "freeze":
                os.kill(service.pid, signal.SIGSTOP)
                time.sleep(8 + 2 * chance.random())
                os.kill(service.pid, signal.SIGCONT)
            case "restart":
                self.postgres.stop(how=chance.choice([signal.SIGINT, signal.SIGQUIT]))
                time.sleep(chance.random())
                self.postgres.start()
            case "hang":
                self._hang(self.way, chance)
            case _:
                self._hang(self.store_way, chance)

    def _hang(self, way: HangingWay, chance: random.Random) -> None:
        way.hangs.set()
        time.sleep(1 + 2 * chance.random())
        way.drop()
        way.hangs.clear()

    def whole(self) -> None:
        for each in self.services:
            if each.process is None or each.process.poll() is not None:
                each.process = None
                each.start(ready=False)
        for each in self.services:
            each.wait_ready()


class Writer:
    """Puts documents in and deletes them, by whichever service answers, and looks for them in all."""

    def __init__(self, field: Field, number: int) -> None:
        self.field, self.number = field, number
        self.chance = random.Random(number)
        self.there: dict[str, str] = {}  # acknowledged, and the text
        self.gone: dict[str, str] = {}
        self.counts = Counter[str]()
        self.clients = [client_of(each.base_url, field.key) for each in field.services]

    def close(self) -> None:
        for each in self.clients:
            each.close()

    def run(self, until: float, exact: str) -> None:
        each = 0
        while time.monotonic() < until:
            each += 1
            self.put(f"d{self.number}-{each}")
            if self.there and self.chance.random() < 0.4:
                self.delete(self.chance.choice([*self.there]))
            for _ in range(3):
                self.look()
            if each % 4 == 0:
                self.compare(exact)

    def put(self, name: str) -> None:
        text = f"{name} stands in {self.chance.choice(PLACES)} since the tide of {self.chance.randrange(10**9)}."
        accepted = self.asked("POST", "/v1/documents", {"documents": [{"id": name, "text": text}]})
        if accepted is None:
            return
        job = good(accepted)["job_id"]
        end = time.monotonic() + 60
        while time.monotonic() < end:
            shown = self.asked("GET", f"/v1/jobs/{job}")
            if shown is not None and good(shown)["status"] != "running":
                assert good(shown)["status"] == "done", shown.text
                self.there[name] = text
                self.counts["put"] += 1
                return
            time.sleep(0.05)
        raise AssertionError(f"{job} was acknowledged, and is not done after 60 s")

    def delete(self, name: str) -> None:
        text = self.there.pop(name)
        answer = self.asked("DELETE", f"/v1/documents/{name}")
        if answer is not None and answer.status_code == 200 and good(answer)["done"]:
            self.gone[name] = text
            self.counts["deleted"] += 1
        else:
            self.counts["unsure"] += 1  # what was begun may be done

    def look(self) -> None:
        """Each service that answers says what was acknowledged."""
        for number in range(COUNT):
            for kind, names in (("there", self.there), ("gone", self.gone)):
                if names:
                    name = self.chance.choice([*names])
                    shown = self.asked("GET", f"/v1/documents/{name}", of=number)
                    if shown is not None:
                        wanted = 200 if kind == "there" else 404
                        assert shown.status_code == wanted, f"{number}: {kind} {name}: {shown.text}"
                        self.counts[f"looked for what is {kind}"] += 1
                    hits = self.asked("POST", "/v1/search", {"query": names[name], "top_k": 5}, of=number)
                    if hits is not None:
                        found = {hit["document_id"] for hit in good(hits)["hits"]}
                        assert (name in found) is (kind == "there"), f"{number}: {kind} {name}: {hits.text}"

    def compare(self, exact: str) -> None:
        answer = self.asked("POST", "/v1/query", question())
        if answer is not None:
            assert good(answer)["answer"] == exact, answer.text
            self.counts["answered"] += 1

    def asked(
        self, method: str, path: str, body: Json | None = None, *, of: int | None = None
    ) -> httpx.Response | None:
        """The answer of a service, or None where it cannot answer just now."""
        client = self.clients[self.chance.randrange(COUNT) if of is None else of]
        try:
            answer = client.request(method, path, json=body, timeout=20)
        except Failed:
            self.counts["no answer"] += 1
            return None
        if answer.status_code in (429, 500, 502, 503):
            assert answer.status_code != 500, answer.text
            self.counts["refused"] += 1
            time.sleep(0.1)
            return None
        return answer


def question() -> Json:
    more = {"collection": "steady", "top_k": 3, "sampling": {"max_tokens": 12}}
    return {"question": "Which lamps burn in Aveiro?", "blend": STEADY, **more}


@pytest.fixture
def field(postgres: PostgresServer, tmp_path: Path) -> Iterator[Field]:
    with ExitStack() as stack:
        yield Field(tmp_path, postgres, stack)


@pytest.mark.long
def test_nothing_acknowledged_is_lost_and_nothing_deleted_is_found(field: Field) -> None:
    chance = random.Random(int(os.environ.get("REPLICA_SEED", "1")))
    with client_of(field.services[0].base_url, field.key) as client:
        steady: list[Json] = [
            {"id": f"s{at}", "text": f"The lamps of {place} burn."} for at, place in enumerate(PLACES)
        ]
        put_in(client, steady, collection="steady")
        exact = ask(client, **question())["answer"]
    writers = [Writer(field, number) for number in range(3)]
    until = time.monotonic() + SECONDS
    share = max(1, round(sum(FAULTS.values()) * SECONDS / 600))
    faults = [kind for kind, count in FAULTS.items() for _ in range(count)]
    chance.shuffle(faults)
    with ThreadPoolExecutor(len(writers)) as threads:
        working = [threads.submit(each.run, until, exact) for each in writers]
        for kind in faults[:share]:
            if any(each.done() for each in working):
                break
            field.fail(kind, chance)
            threading.Event().wait(max(0.0, SECONDS / share - 4) * chance.random())
        for each in working:
            each.result()
    field.whole()
    wait_for(lambda: len({each.pid for each in field.services}) == COUNT, "all run")
    for writer in writers:
        for number in range(COUNT):
            for names, wanted in ((writer.there, 200), (writer.gone, 404)):
                for name in names:
                    assert writer.clients[number].get(f"/v1/documents/{name}").status_code == wanted
        writer.close()
    counts = sum((each.counts for each in writers), Counter[str]())
    sys.stdout.write(f"{dict(field.faults)} {dict(counts)}\n")
