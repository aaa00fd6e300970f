"""A service whose keys and catalogs are in PostgreSQL, on any machine."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from retriever.postgres import connection, database
from service.documents import ingest
from service.truth.databases import ADMIN_KEY
from service.truth.postgres import replica
from tests.servers.hanging import hanging_way
from tests.servers.postgres import SECRET, PostgresServer
from tests.service.serving import (
    Json,
    Service,
    ask,
    client_of,
    finished,
    good,
    in_process,
    kvweave_ended,
    put_in,
    settings_in,
    wait_for,
)

TEXT = "The cedar lamps of Aveiro burn until the tide has turned."
DOCUMENT = {"id": "lamps", "text": TEXT}


def service(folder: Path, url: str) -> Service:
    """On a machine of its own: nothing but the database is shared."""
    folder.mkdir()
    return Service(folder, data=f"{url}#{folder}/data")


def in_the_end(send: Callable[[], httpx.Response]) -> Json:
    """What whoever is told to ask again hears in the end: a service that was cut off may have to catch up first."""
    answers: list[httpx.Response] = []

    def is_answered() -> bool:
        answers.append(send())
        return answers[-1].status_code != 503

    wait_for(is_answered, "it goes on")
    return good(answers[-1])


def found(client: httpx.Client, query: str = "cedar lamps") -> list[str]:
    answer = in_the_end(lambda: client.post("/v1/search", json={"query": query}))
    return [hit["document_id"] for hit in answer["hits"]]


def test_another_machine_goes_on_where_a_killed_one_was(postgres: PostgresServer, tmp_path: Path) -> None:
    """The second has nothing of the first but the database: no key, no document and no job is lost."""
    url = postgres.database()
    first = service(tmp_path / "first", url)
    with first:
        key = first.key
        with first.client() as client:
            put_in(client, [DOCUMENT])
            second = service(tmp_path / "second", url)
            second.start(ready=False)
            assert second.process is not None and second.process.wait(120) == 2
            assert "served by another process whose caches are in lmdb://" in second.text().splitlines()[-1]
            second.process = None
            waits = good(client.post("/v1/documents", json={"documents": [{"id": "later", "text": f"{TEXT} Later."}]}))
            first.kill()
    with second:
        assert not (second.data / ADMIN_KEY).exists()
        with second.client(key) as client:
            finished(client, waits["job_id"])
            assert set(found(client)) == {"lamps", "later"}
            good(client.delete("/v1/documents/lamps"))
            assert found(client) == ["later"]
    assert SECRET not in first.text() + second.text()


def test_it_goes_on_by_itself_when_the_server_was_away(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "CONNECT_S", 1)
    settings = settings_in(tmp_path, data=f"{postgres.database()}#{tmp_path}/data")
    with in_process(settings) as served, served.client() as client:
        put_in(client, [DOCUMENT])
        for how in (signal.SIGINT, signal.SIGQUIT):
            body = {"documents": [{"id": how.name, "text": f"{TEXT} {how}"}]}
            accepted = in_the_end(lambda body=body: client.post("/v1/documents", json=body))
            postgres.stop(how=how)
            refused = [client.post("/v1/search", json={"query": "cedar"}), client.post("/v1/documents", json={})]
            refused.append(client.get("/readyz"))
            postgres.start()
            assert {each.status_code for each in refused} == {503}
            assert "the database does not answer" in refused[0].json()["detail"]
            assert all(SECRET not in each.text for each in refused)
            job = f"/v1/jobs/{accepted['job_id']}"
            wait_for(lambda job=job: in_the_end(lambda: client.get(job))["status"] == "done", "it is done")
        answer = in_the_end(lambda: client.post("/v1/search", json={"query": "cedar lamps"}))
        assert {hit["document_id"] for hit in answer["hits"]} == {"lamps", "SIGINT", "SIGQUIT"}
        assert SECRET not in json.dumps(good(client.get("/v1/stats")))


def test_a_connection_that_hangs_is_a_503_and_no_more(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "ANSWER_S", 1.0)
    with hanging_way(postgres.port) as way:
        url = postgres.database().replace(f":{postgres.port}/", f":{way.port}/")
        with in_process(settings_in(tmp_path, data=f"{url}#{tmp_path}/data")) as served, served.client() as client:
            put_in(client, [DOCUMENT])
            way.hangs.set()
            assert client.post("/v1/search", json={"query": "cedar"}).status_code == 503
            way.hangs.clear()
            wait_for(lambda: client.get("/readyz").status_code == 200, "it goes on")
            assert found(client) == ["lamps"]


def test_who_has_lost_the_database_to_another_ends(postgres: PostgresServer, tmp_path: Path) -> None:
    url = postgres.database()
    with hanging_way(postgres.port) as way:
        behind = url.replace(f":{postgres.port}/", f":{way.port}/")
        with service(tmp_path / "one", behind) as one:
            with one.client() as client:
                put_in(client, [DOCUMENT])
            way.hangs.set()
            way.drop()
            with service(tmp_path / "two", url) as two, two.client(one.key) as client:
                put_in(client, [{**DOCUMENT, "id": "more"}])
                way.hangs.clear()
                assert one.process is not None and one.process.wait(120) == 2
                one.process = None
                assert "served by another process whose caches are in lmdb://" in one.text().splitlines()[-1]
                assert found(client) == ["lamps"]  # of one text, which is one chunk


def test_keys_and_a_corpus_are_made_beside_the_service(postgres: PostgresServer, tmp_path: Path) -> None:
    settings = settings_in(tmp_path, data=f"{postgres.database()}#{tmp_path}/data")
    (tmp_path / "tide.txt").write_text("Another tide has come.")

    def command(*words: str) -> str:
        data = f"{settings.database}#{settings.data}"
        return kvweave_ended(*words, KVWEAVE_DATA=data, KVWEAVE_STORE=settings.store).stdout.strip()

    def keys(*words: str) -> str:
        return command("keys", *words)

    with in_process(settings) as served:
        told = command("precompute", str(tmp_path / "tide.txt"), "--json").splitlines()
        assert json.loads(told[-1])["stored"] == 1
        with served.client() as client:
            wait_for(lambda: len(found(client, "another tide")) == 1, "it is found")
        key = keys("create", "--tenant", "acme", "--role", "write")
        with client_of(served.base_url, key) as client:
            put_in(client, [DOCUMENT])
            assert found(client) == ["lamps"]
            listed = json.loads(keys("list", "--json"))
            [made] = [each["id"] for each in listed if each["tenant"] == "acme"]
            keys("revoke", made)
            assert client.post("/v1/search", json={"query": "x"}).status_code == 401


def test_a_deleted_text_leaves_the_files_though_services_look_for_work_all_the_time(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica, "WORK_S", 0.1)  # looks at each sign of life, every second
    monkeypatch.setattr(ingest, "IDLE_S", 3.0)
    url = postgres.database()
    with in_process(settings_in(tmp_path, data=f"{url}#{tmp_path}/data")) as served, served.client() as client:
        birds = ("swan", "heron")
        put_in(client, [{"id": word[1:], "text": f"{TEXT} {word}", "title": word} for word in birds])
        good(client.delete("/v1/documents/eron"))

        def have(word: bytes) -> bool:
            return any(word in file.read_bytes() for file in postgres.files(url))

        wait_for(lambda: not have(b"heron"), "no file has it")
        assert have(b"swan")
        assert found(client, "swan") == ["wan"]


def test_a_service_whose_database_became_another_one_answers_of_that_one(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    """An older copy of the database takes its place; what is put then has the numbers of what the copy has not."""
    url, dump = postgres.database(), tmp_path / "kvweave.dump"
    other = postgres.database(beside=url)
    texts = {word: f"{TEXT} And {word} {'whistles ' * 40}{word} in the evening." for word in ("swan", "heron", "crane")}

    def put(client: httpx.Client, word: str) -> None:
        put_in(client, [{"id": word, "text": texts[word]}])

    def recognised(client: httpx.Client, word: str) -> int:
        told = {"model": "default", "messages": [{"role": "user", "content": texts[word]}], "max_tokens": 1}
        answer = in_the_end(lambda: client.post("/v1/chat/completions", json=told))
        return len(answer["kvweave"]["report"]["chunks"])

    with in_process(settings_in(tmp_path, data=f"{url}#{tmp_path}/data")) as served, served.client() as client:
        put(client, "swan")
        postgres.run("pg_dump", url, "--format=custom", "--no-owner", f"--file={dump}")
        postgres.run("pg_restore", other, "--no-owner", "--exit-on-error", str(dump))
        put(client, "heron")
        good(client.delete("/v1/documents/swan"))
        assert (recognised(client, "heron"), recognised(client, "swan")) == (1, 0)
        lease = served.core.lease()
        postgres.exchange(url, other)
        wait_for(lambda: served.core.lease() not in (lease, None), "it is a service of the other")
        put(client, "crane")
        assert [recognised(client, word) for word in ("swan", "heron", "crane")] == [1, 0, 1]
        assert found(client, "heron whistles crane") == ["crane", "swan"]


def test_what_postgresqls_own_tools_back_up_serves_again(postgres: PostgresServer, tmp_path: Path) -> None:
    """Into another database, with the store as it was, and with an empty one: answers are the same."""
    url, other, dump = postgres.database(), postgres.database(), tmp_path / "kvweave.dump"
    documents = [{**DOCUMENT, "id": f"lamps-{number}", "text": f"{TEXT} Part {number}."} for number in range(5)]
    question = {"sampling": {"max_tokens": 8}}
    with in_process(settings_in(tmp_path, data=f"{url}#{tmp_path}/data")) as served, served.client() as client:
        put_in(client, documents)
        wanted, hits = ask(client, "What burns in Aveiro?", **question)["answer"], found(client)
        waits = good(client.post("/v1/documents", json={"documents": [{"id": "later", "text": f"{TEXT} Later."}]}))
        postgres.run("pg_dump", url, "--format=custom", "--no-owner", f"--file={dump}")  # beside the service
        key = served.key
    postgres.run("pg_restore", other, "--no-owner", "--exit-on-error", str(dump))
    for store in (f"lmdb://{tmp_path}/store", f"lmdb://{tmp_path}/empty"):
        settings = settings_in(tmp_path, data=f"{other}#{tmp_path}/elsewhere", store=store)
        with in_process(settings) as served, served.client(key) as client:
            finished(client, waits["job_id"])
            assert {*hits} <= {*found(client)} <= {*hits, "later"}
            if "later" in found(client, "later"):
                good(client.delete("/v1/documents/later"))
            assert ask(client, "What burns in Aveiro?", **question)["answer"] == wanted
            put_in(client, [{**DOCUMENT, "id": "lamps-0", "text": f"{TEXT} Anew."}])
            put_in(client, documents[:1])
