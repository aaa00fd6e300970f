"""Several services on one database and one store: what one of them acknowledges holds on all, whichever dies."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from random import Random

import httpx
import psycopg
import pytest

from service.api.changes import HEADER
from service.truth.postgres.postgres_peers import GIVEN_UP_S
from service.truth.postgres.server_lock import Still
from tests.conftest import WITHOUT_NGINX
from tests.servers.nginx import nginx
from tests.servers.postgres import SECRET, PostgresServer
from tests.service.checkpoints import small
from tests.service.serving import Json, Service, ask, client_of, finished, good, kvweave_ended, put_in, wait_for

COUNT = 3
TEXT = "The cedar lamps of {0} burn until the tide has turned {1} times."
WRITES = int(os.environ.get("REPLICA_WRITES", "12"))


class Replicas:
    """Services on machines of their own, which share a database and a folder of caches."""

    def __init__(self, folder: Path, url: str) -> None:
        self.url = url
        self.services: list[Service] = []
        self._starts = ExitStack()
        for number in range(COUNT):
            home = folder / f"machine-{number}"
            home.mkdir()
            store = f"tiered:mem://?budget=64MB|file://{folder}/store"
            self.services.append(Service(home, data=f"{url}#{home}/data", store=store, model=small()))
        self.services[0].start()
        self.key = self.services[0].key
        for each in self.services[1:]:
            each.start(ready=False)
        for each in self.services:
            each.wait_ready()

    def client(self, number: int) -> httpx.Client:
        return self._starts.enter_context(client_of(self.services[number].base_url, self.key))

    def rows(self, sql: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self.url) as connection:
            connection.execute("SET search_path TO kvweave_default, kvweave")
            return connection.execute(sql).fetchall()  # pyright: ignore

    def command(self, *words: str) -> str:
        return kvweave_ended(*words, KVWEAVE_DATA=f"{self.url}#{self.services[0].data}").stdout.strip()

    def close(self) -> None:
        self._starts.close()
        for each in self.services:
            if each.process is not None:
                each.process.send_signal(signal.SIGCONT)
                each.kill()


@pytest.fixture(scope="module")
def replicas(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    made = Replicas(tmp_path_factory.mktemp("replicas"), postgres.database())
    yield made
    made.close()
    assert all(SECRET not in each.text() for each in made.services)


def document(name: str, number: int = 0) -> Json:
    return {"id": name, "text": TEXT.format(name, number)}


def found(client: httpx.Client, query: str, **more: object) -> set[str]:
    response = client.post("/v1/search", json={"query": query, "top_k": 20, **more})
    return {hit["document_id"] for hit in good(response)["hits"]}


def test_what_one_has_written_another_reads(replicas: Replicas) -> None:
    """With the number of the change that a write, or the job that it began, has told."""
    one, other = replicas.client(0), replicas.client(1)
    for number in range(WRITES):
        job = put_in(one, [document("written", number)])
        shown = other.get("/v1/documents/written/chunks", headers={HEADER: job["change"]})
        assert good(shown)["chunks"][0]["text"] == TEXT.format("written", number)
        hits = good(other.post("/v1/search", json={"query": f"written {number}"}, headers={HEADER: job["change"]}))
        assert TEXT.format("written", number) in [hit["text"] for hit in hits["hits"]]
        patched = one.patch("/v1/documents/written", json={"metadata": {"n": number}})
        shown = other.get("/v1/documents/written", headers={HEADER: patched.headers[HEADER]})
        assert good(shown)["metadata"] == {"n": number}
        one, other = other, one


def test_what_is_deleted_on_one_is_gone_from_all(replicas: Replicas) -> None:
    clients = [replicas.client(number) for number in range(COUNT)]
    for number in range(COUNT):
        name = f"gone-{number}"
        put_in(clients[0], [document(name)])
        wanted = {"policy": "reuse"}
        for each in clients:  # so that each has it in its memory
            ask(each, f"Which lamps of {name} burn?", blend=wanted, sampling={"max_tokens": 2})
        deleted = good(clients[number].delete(f"/v1/documents/{name}"))
        assert deleted["done"] is True
        for each in clients:
            assert name not in found(each, f"lamps of {name}")
            assert each.get(f"/v1/documents/{name}").status_code == 404


def test_a_session_that_is_ended_on_one_is_ended_on_all(replicas: Replicas) -> None:
    one, other = replicas.client(0), replicas.client(1)
    texts = [TEXT.format(f"session-{number}", number) for number in range(4)]
    put_in(one, [{"id": "session", "chunks": [{"text": each} for each in texts]}])
    said: list[Json] = [{"role": "user", "content": "\n\n".join([*texts, "Which lamps burn?" * 9])}]

    def computed(name: str) -> int:
        """By the next turn of a session with this name."""
        body = {"model": "default", "messages": said, "blend": {"policy": "reuse"}, "session": name, "max_tokens": 4}
        told = good(one.post("/v1/chat/completions", json=body))
        usage = told["usage"]
        said.append({"role": "assistant", "content": told["choices"][0]["message"]["content"]})
        said.append({"role": "user", "content": "And which do not?"})
        return int(usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"])

    anew, further = computed("a/b"), computed("a/b")
    assert other.delete("/v1/sessions/a%2Fc").status_code == 204
    assert anew > further + 10 > computed("a/b")
    assert other.delete("/v1/sessions/a%2Fb").status_code == 204
    assert computed("a/b") > further + 10
    assert computed("a/b") < further + 10
    assert other.delete("/v1/sessions/c").status_code == 204
    assert len(replicas.rows("SELECT tenant FROM sweeps WHERE tenant LIKE '%(%'")) <= 2, "what all have learned goes"


def test_what_a_killed_one_had_begun_the_others_end_once(replicas: Replicas) -> None:
    """Jobs go on elsewhere; each document has one version, and no claim is left."""
    chance = Random(11)
    clients = [replicas.client(number) for number in range(COUNT)]
    jobs: list[str] = []
    names = [f"job-{number}" for number in range(30)]
    for name in names:
        body = {"documents": [{"id": name, "chunks": [{"text": TEXT.format(name, each)} for each in range(8)]}]}
        jobs.append(good(clients[chance.randrange(COUNT)].post("/v1/documents", json=body))["job_id"])
    wait_for(lambda: len(replicas.rows("SELECT 1 FROM claims")) >= 2, "several work")
    replicas.services[2].kill()
    for job in jobs:
        assert finished(clients[0], job)["status"] == "done"
    assert {name for name in names if good(clients[1].get(f"/v1/documents/{name}"))["chunks"] == 8} == {*names}
    [versions] = replicas.rows("SELECT count(*), count(DISTINCT id) FROM documents WHERE id LIKE 'job-%'")
    assert versions == (len(names), len(names))
    replicas.services[2].start()
    wait_for(lambda: len(replicas.rows("SELECT 1 FROM replicas")) == COUNT, "the dead one is given up")
    wait_for(lambda: not replicas.rows("SELECT 1 FROM claims"), "every claim is given back")


def test_one_that_stands_still_holds_nobody_up_and_answers_nothing_old(replicas: Replicas) -> None:
    """It is asked while it stands still, so that it answers as soon as it goes on."""
    clients = [replicas.client(number) for number in range(COUNT)]
    put_in(clients[0], [document("frozen")])
    assert "frozen" in found(clients[1], "lamps of frozen")
    answers: list[httpx.Response] = []
    pid = replicas.services[1].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        with_new = client_of(replicas.services[1].base_url, replicas.key)
        asking = threading.Thread(
            target=lambda: answers.append(with_new.post("/v1/search", json={"query": "lamps of frozen"}))
        )
        asking.start()
        deleted = good(clients[0].delete("/v1/documents/frozen"))
        assert deleted["done"] is True
        put_in(clients[2], [document("after")])
    finally:
        os.kill(pid, signal.SIGCONT)
    asking.join()
    with_new.close()
    assert answers[0].status_code == 503 or "frozen" not in answers[0].text
    wait_for(lambda: clients[1].get("/readyz").status_code == 200, "it catches up")
    assert "frozen" not in found(clients[1], "lamps of frozen")
    assert "after" in found(clients[1], "lamps of after")
    put_in(clients[1], [document("frozen", 2)])
    assert "frozen" in found(clients[0], "lamps of frozen")


def test_they_go_on_when_the_server_was_away(replicas: Replicas, postgres: PostgresServer) -> None:
    clients = [replicas.client(number) for number in range(COUNT)]
    job = good(clients[0].post("/v1/documents", json={"documents": [document("later")]}))["job_id"]
    postgres.stop(how=signal.SIGQUIT)
    assert clients[1].post("/v1/search", json={"query": "x"}).status_code == 503
    postgres.start()
    for each in clients:
        wait_for(lambda each=each: each.get("/readyz").status_code == 200, "it goes on")
    assert finished(clients[2], job)["status"] == "done"
    assert good(clients[1].delete("/v1/documents/later"))["done"] is True
    assert all("later" not in found(each, "lamps of later") for each in clients)


def test_a_rate_holds_over_all_of_them(replicas: Replicas) -> None:
    with client_of(replicas.services[0].base_url, replicas.key) as client:
        assert client.get("/v1/stats").is_success
    ran = replicas.command("keys", "create", "--role", "read", "--per-minute", "7")
    with ExitStack() as stack:
        clients = [stack.enter_context(client_of(each.base_url, ran)) for each in replicas.services]
        with ThreadPoolExecutor(9) as threads:
            asked = [threads.submit(clients[number % COUNT].get, "/v1/documents") for number in range(30)]
            answers = [each.result() for each in asked]
    assert sorted({each.status_code for each in answers}) == [200, 429]
    assert sum(each.is_success for each in answers) == 7
    assert all(1 <= int(each.headers["Retry-After"]) <= 60 for each in answers if not each.is_success)


def test_a_quota_holds_over_all_of_them(replicas: Replicas) -> None:
    key = replicas.command("keys", "create", "--tenant", "small", "--role", "write")
    replicas.command("keys", "quota", "small", "--documents", "5")
    with ExitStack() as stack:
        clients = [stack.enter_context(client_of(each.base_url, key)) for each in replicas.services]

        def put(number: int) -> int:
            body = {"documents": [document(f"q{number}", number)]}
            return clients[number % COUNT].post("/v1/documents", json=body).status_code

        with ThreadPoolExecutor(9) as threads:
            assert sorted(threads.map(put, range(18))) == [202] * 5 + [429] * 13


def test_writers_everywhere_lose_nothing(replicas: Replicas) -> None:
    """All of them put and delete at once; what is acknowledged is what is there, on each."""
    clients = [replicas.client(number) for number in range(COUNT)]
    kept: dict[str, bool] = {}

    def write(number: int) -> None:
        chance, client = Random(number), client_of(replicas.services[number % COUNT].base_url, replicas.key)
        with client:
            for each in range(4):
                name = f"w{number}-{each}"
                put_in(client, [document(name)])
                kept[name] = True
                if chance.random() < 0.5:
                    assert good(client.delete(f"/v1/documents/{name}"))["done"]
                    kept[name] = False

    with ThreadPoolExecutor(2 * COUNT) as threads:
        for done in [threads.submit(write, number) for number in range(2 * COUNT)]:
            done.result()
    for each in clients:
        for name, is_there in kept.items():
            assert (each.get(f"/v1/documents/{name}").status_code == 200) is is_there


def test_one_after_another_is_replaced_behind_a_balancer_and_no_request_fails(replicas: Replicas) -> None:
    """Questions, searches, uploads and deletes go on while each is told to stop, and started again."""
    with nginx([each.base_url for each in replicas.services[:2]]) as balanced:
        if balanced is None:
            pytest.skip(WITHOUT_NGINX)
        over = threading.Event()
        with ThreadPoolExecutor(2) as threads:
            asking = [
                threads.submit(keep_asking, client_of(balanced, replicas.key), over, number) for number in range(2)
            ]
            try:
                for each in replicas.services[:2]:
                    each.terminate()
                    each.start()
            finally:
                over.set()
            assert min(each.result() for each in asking) > 0


def keep_asking(client: httpx.Client, over: threading.Event, number: int) -> int:
    """How many rounds of requests were answered, all of which have to be."""
    rounds = 0
    with client:
        while not over.is_set():
            name = f"rolled-{number}-{rounds}"
            put_in(client, [document(name)])
            assert name in found(client, f"lamps of {name}")
            ask(client, f"Which lamps of {name} burn?", top_k=2, sampling={"max_tokens": 2})
            good(client.delete(f"/v1/documents/{name}"))
            rounds += 1
    return rounds


def test_time_in_which_nobody_looked_does_not_count() -> None:
    now = [0.0]
    still = Still(GIVEN_UP_S, lambda: now[0])

    def looked(after: float, *seen: int) -> list[int]:
        now[0] += after
        return still.still(dict(enumerate(seen)))

    for _ in range(6):
        assert looked(1, 1, int(now[0] > 3)) == []
    assert looked(1, 1, 1) == [1]
    assert looked(GIVEN_UP_S, 1, 1) == []  # who stood still itself begins anew
    for beat in range(20):
        assert looked(1, beat) == []
