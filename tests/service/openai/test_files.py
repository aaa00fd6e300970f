"""Files as OpenAI's clients have them, and the ids of what is here."""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import OpenAI

from service.documents import ingestion
from service.openai.stored_files import FILES, VECTOR_STORES
from service.truth.control import Quota
from tests.service.checkpoints import small
from tests.service.official import official
from tests.service.openai.conftest import BADGER, HERON, bound, found
from tests.service.serving import Inside, good, in_process, put_in, settings_in

PAGE = Path(__file__).resolve().parents[3] / "docs" / "clients.md"
NOWHERE: list[Callable[[OpenAI, str, str], object]] = [
    lambda client, store, file: client.files.retrieve(file),
    lambda client, store, file: client.files.content(file),
    lambda client, store, file: client.files.delete(file),
    lambda client, store, file: client.vector_stores.files.retrieve(file, vector_store_id=store),
    lambda client, store, file: client.vector_stores.files.content(file, vector_store_id=store).data,
    lambda client, store, file: client.vector_stores.files.delete(file, vector_store_id=store),
    lambda client, store, file: client.vector_stores.files.update(file, vector_store_id=store, attributes={}),
    lambda client, store, file: client.vector_stores.files.create(store, file_id=file),
    lambda client, store, file: client.vector_stores.file_batches.create(store, file_ids=[file]),
]
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=64)


def refused(act: Callable[[], object]) -> tuple[int, str]:
    with pytest.raises(openai.APIStatusError) as caught:
        act()
    return caught.value.status_code, caught.value.message


def test_a_file_waits_for_its_vector_store_and_is_found_there_alone(service: Inside, client: OpenAI) -> None:
    file = client.files.create(file=("letter.txt", BADGER), purpose="assistants")
    assert client.files.wait_for_processing(file.id, poll_interval=0.01).status == "processed"
    assert (file.filename, file.bytes, file.purpose) == ("letter.txt", len(BADGER), "assistants")
    assert (client.files.retrieve(file.id), client.files.content(file.id).content) == (file, BADGER)
    with service.client() as rest:
        assert good(rest.get("/v1/documents"))["documents"] == good(rest.get("/v1/jobs"))["jobs"] == []
        assert good(rest.post("/v1/search", json={"query": "badger"}))["hits"] == []
        assert good(rest.get("/v1/collections"))["collections"] == []
    store = client.vector_stores.create(name="letters").id
    cut: Any = {"type": "static", "static": {"max_chunk_size_tokens": 800, "chunk_overlap_tokens": 400}}
    told = refused(lambda: client.vector_stores.files.create(store, file_id=file.id, chunking_strategy=cut))
    assert told[0] == 409 and "are cut to 256 tokens without overlap" in told[1]
    put = client.vector_stores.files.create_and_poll(
        file.id, vector_store_id=store, attributes={"year": 1911.5, "a": True}
    )
    assert (put.status, put.last_error, put.usage_bytes, put.vector_store_id) == ("completed", None, len(BADGER), store)
    assert (put.id, put.attributes) == (file.id, {"year": 1911.5, "a": True})
    [hit] = client.vector_stores.search(
        store, query="Who keeps a badger?", filters={"type": "eq", "key": "a", "value": True}
    )
    assert (hit.file_id, hit.filename, hit.content[0].text) == (file.id, "letter.txt", BADGER.decode())
    assert client.files.retrieve(file.id).filename == "letter.txt"
    [text] = client.vector_stores.files.content(file.id, vector_store_id=store)
    assert text.text == BADGER.decode()


def test_the_example_of_the_page_runs(client: OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    [code] = re.findall(r"```python\n(store = .*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    monkeypatch.chdir(PAGE.parents[1])
    exec(code, {"client": client})
    assert found(client, "vs_handbook")


def test_two_files_of_one_name_are_two(client: OpenAI) -> None:
    stores = [client.vector_stores.create(name=name).id for name in ("one", "other")]
    files = [
        client.vector_stores.files.upload_and_poll(vector_store_id=store, file=("letter.txt", text)).id
        for store, text in zip(stores, (BADGER, HERON), strict=True)
    ]
    assert [found(client, store) for store in stores] == [[files[0]], [files[1]]]


def test_a_name_becomes_no_longer_title_than_a_document_may_have(client: OpenAI) -> None:
    for name, text in (("a" * 3000 + ".txt", BADGER), ("b" * 3000 + ".jsonl", b'{"text": "One."}\n{"text": "Two."}')):
        file = client.files.create(file=(name, text), purpose="assistants")
        assert file.filename == client.files.retrieve(file.id).filename == name[:1000]


def test_a_file_that_is_taken_out_is_there_still_until_it_is_deleted(client: OpenAI) -> None:
    store = client.vector_stores.create(name="letters").id
    file = client.vector_stores.files.upload_and_poll(vector_store_id=store, file=("a.txt", BADGER)).id
    assert client.vector_stores.files.delete(file, vector_store_id=store).deleted
    assert found(client, store) == [] and client.vector_stores.retrieve(store).file_counts.total == 0
    assert client.files.content(file).content == BADGER and client.files.retrieve(file).filename == "a.txt"
    assert client.vector_stores.files.create_and_poll(file, vector_store_id=store).status == "completed"
    assert found(client, store) == [file]
    assert client.files.delete(file).deleted
    assert found(client, store) == [] and not client.files.list().data
    assert set(told_everywhere(client, store, file)) == {refused(lambda: client.files.retrieve(file))}


def test_documents_of_ours_are_files_too(service: Inside, client: OpenAI) -> None:
    with service.client() as rest:
        put_in(rest, [{"id": "a/b c", "text": "Halio keeps a badger.", "metadata": {"n": 1}}], collection="ours")
    [file] = client.vector_stores.files.list("vs_ours").data
    assert (file.id, file.status, file.attributes) == ("file-a~2Fb~20c", "completed", {"n": 1})
    assert client.files.retrieve(file.id).filename == "a/b c"
    changed = client.vector_stores.files.update(file.id, vector_store_id="vs_ours", attributes={"m": "x"})
    assert changed.attributes == {"m": "x"}
    assert client.vector_stores.files.update(file.id, vector_store_id="vs_ours", attributes=None).attributes == {}
    client.files.delete(file.id)
    with service.client() as rest:
        assert good(rest.get("/v1/documents"))["documents"] == []


def test_lists_are_walked_past_the_longest_ids(service: Inside, client: OpenAI) -> None:
    longest = [{"id": letter * 1024, "text": f"Halio keeps {letter}."} for letter in "𝄞𝄟𝄢"]
    with service.client() as rest:
        put_in(rest, longest, collection="clefs")
    files = {FILES.id_of(each["id"]) for each in longest}
    assert {each.id for each in client.vector_stores.files.list("vs_clefs", limit=1)} == files
    assert {each.id for each in client.files.list(limit=1)} == files
    store = client.vector_stores.create(name="others").id
    batch = client.vector_stores.file_batches.create_and_poll(store, file_ids=[*files])
    assert batch.file_counts.completed == 3


def test_a_batch_is_put_in_together_and_counted(client: OpenAI) -> None:
    files = [client.files.create(file=(f"{n}.txt", b"Letter %d." % n), purpose="user_data").id for n in range(3)]
    store = client.vector_stores.create(name="letters", file_ids=files[:1]).id
    given: Any = [{"file_id": each, "attributes": {"n": n}} for n, each in enumerate(files[1:])]
    batch = client.vector_stores.file_batches.create_and_poll(store, files=given)
    assert (batch.status, batch.file_counts.completed, batch.file_counts.total) == ("completed", 2, 2)
    while client.vector_stores.retrieve(store).status != "completed":
        time.sleep(0.02)
    assert client.vector_stores.retrieve(store).file_counts.completed == 3
    listed = client.vector_stores.files.list(store, order="asc", limit=2)
    assert sorted(each.id for each in listed) == sorted(files)
    assert {each.id: each.attributes for each in listed if each.attributes} == {files[1]: {"n": 0}, files[2]: {"n": 1}}
    assert [each.purpose for each in client.files.list(purpose="user_data")] == ["user_data"] * 3
    assert not client.files.list(purpose="assistants").data
    assert refused(lambda: client.vector_stores.file_batches.retrieve(batch.id, vector_store_id="vs_other"))[0] == 404


def test_a_walk_of_what_is_in_progress_goes_on_when_some_of_it_is_completed(service: Inside, client: OpenAI) -> None:
    store = client.vector_stores.create(name="letters").id
    files = [client.files.create(file=("a.txt", b"Letter %d." % n), purpose="assistants").id for n in range(3)]
    with service.core.ingest.resting():
        for each in files:
            client.vector_stores.files.create(store, file_id=each)
        page = client.vector_stores.files.list(store, filter="in_progress", limit=2)
        assert [each.id for each in page.data] == files[:0:-1]
        client.files.delete(files[2])
        assert [each.id for each in page.get_next_page().data] == files[:1]
    client.vector_stores.files.poll(files[0], vector_store_id=store, poll_interval_ms=20)
    client.vector_stores.files.poll(files[1], vector_store_id=store, poll_interval_ms=20)
    assert not page.get_next_page().data


def test_a_batch_is_told_under_its_own_vector_store_alone(client: OpenAI) -> None:
    def told(batch: str, store: str) -> tuple[int, str]:
        return refused(lambda: client.vector_stores.file_batches.retrieve(batch, vector_store_id=store))

    letters, other = (client.vector_stores.create(name=name).id for name in ("letters", "other"))
    file = client.files.create(file=("a.txt", BADGER), purpose="assistants").id
    first, again = (client.vector_stores.file_batches.create_and_poll(letters, file_ids=[file]).id for _ in range(2))
    assert told(first, other)[0] == 404 and "there is no batch of files" in told(first, other)[1]
    for batch in (again, first):  # the second had nothing to do
        assert told(batch, "vs_never")[0] == 404 and "there is no vector store 'vs_never'" in told(batch, "vs_never")[1]
    client.vector_stores.delete(letters)
    assert "there is no vector store 'vs_letters'" in told(first, letters)[1]


def test_what_cannot_be_computed_has_failed_and_says_why(client: OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ValueError("no")

    store = client.vector_stores.create(name="letters").id
    with monkeypatch.context() as patch:
        patch.setattr(ingestion, "cut_draft", broken)
        put = client.vector_stores.files.upload_and_poll(vector_store_id=store, file=("a.txt", BADGER))
    assert put.status == "failed" and put.last_error and "could not work on it: ValueError" in put.last_error.message
    counts = client.vector_stores.retrieve(store).file_counts
    assert (counts.failed, counts.total) == (1, 1)
    assert [each.id for each in client.vector_stores.files.list(store, filter="failed")] == [put.id]
    assert not client.vector_stores.files.list(store, filter="completed").data


@pytest.mark.parametrize(
    ("file", "purpose", "told"),
    [
        (("a.bin", b"x"), "assistants", "'a.bin' is of no known kind: its name must end in"),
        (("a.txt", b" "), "assistants", "'a.txt' is empty: leave it out"),
        (("a.pdf", b"%PDF-1.7 broken"), "assistants", "a.pdf cannot be read"),
        (("a.txt", b"x"), "fine-tune", "it is one of assistants, user_data, got 'fine-tune'"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(client: OpenAI, file: Any, purpose: Any, told: str) -> None:  # noqa: ANN401
    status, message = refused(lambda: client.files.create(file=file, purpose=purpose))
    assert status == 400 and told in message and not client.files.list().data
    assert f"'param': {'purpose' if purpose == 'fine-tune' else 'file'!r}" in message


def test_of_a_file_that_is_cut_off_nothing_is_kept(service: Inside, client: OpenAI) -> None:
    head = b"--b\r\nContent-Disposition: form-data; name="
    parts = [b'"purpose"\r\n\r\nassistants\r\n', head, b'"file"; filename="a.txt"\r\n\r\n', BADGER, b"\r\n--b"]
    with service.client() as http:
        told = http.post(
            "/v1/files", content=head + b"".join(parts), headers={"content-type": "multipart/form-data; boundary=b"}
        )
    assert told.status_code == 400 and "the body ended before the last boundary" in told.json()["error"]["message"]
    assert not client.files.list().data


def test_what_can_be_read_of_a_file_is_kept(client: OpenAI) -> None:
    lines = b'{"text": "Halio keeps a badger."}\n{"id": "bad"}\n{"text": "Mirel keeps a heron."}'
    file = client.files.create(file=("a.jsonl", lines), purpose="assistants")
    assert client.files.content(file.id).text == "Halio keeps a badger.\n\nMirel keeps a heron."


def test_a_file_that_others_may_not_see_is_told_like_one_that_never_was(service: Inside, client: OpenAI) -> None:
    store = client.vector_stores.create(name="letters").id
    with bound(service, team="a") as mine, bound(service, team="a") as same, bound(service, team="b") as strangers:
        waiting = mine.files.create(file=("a.txt", HERON), purpose="assistants").id
        file = mine.vector_stores.files.upload_and_poll(vector_store_id=store, file=("a.txt", BADGER)).id
        assert found(mine, store) == found(same, store) == [file]
        assert sorted(each.id for each in mine.files.list()) == sorted([waiting, file])
        for stranger, hidden in ((same, waiting), (strangers, waiting), (strangers, file)):
            there, never = (told_everywhere(stranger, store, each) for each in (hidden, "file-never"))
            assert [(status, said.replace(hidden, "file-never")) for status, said in there] == never
            assert {status for status, _ in there} == {404}
        assert not strangers.files.list().data and not strangers.vector_stores.list().data
        mine.vector_stores.files.delete(file, vector_store_id=store)
        mine.files.delete(file)
        assert [each.id for each in mine.files.list()] == [waiting]


def test_files_that_wait_count_for_the_quota_and_leave_it_when_deleted(service: Inside, client: OpenAI) -> None:
    service.core.control.set_quota("default", Quota(2, None))
    try:
        store = client.vector_stores.create(name="letters").id
        first, second = (client.files.create(file=("a.txt", each), purpose="assistants").id for each in (BADGER, HERON))
        status, told = refused(lambda: client.files.create(file=("b.txt", BADGER), purpose="assistants"))
        assert status == 429 and "the quota of tenant 'default' is 2 documents" in told
        assert client.vector_stores.files.create_and_poll(first, vector_store_id=store).status == "completed"
        client.files.delete(second)
        client.files.create(file=("b.txt", HERON), purpose="assistants")
    finally:
        service.core.control.set_quota("default", Quota())


def test_files_that_wait_for_a_store_hold_up_no_upload(tmp_path: Path) -> None:
    text = HERON * 80
    with in_process(settings_in(tmp_path, model=small(), max_body_bytes=4096)) as service, official(service) as client:
        files = [client.files.create(file=("a.txt", text), purpose="assistants").id for _ in range(5)]
        status, told = refused(lambda: client.files.create(file=("a.txt", text), purpose="assistants"))
        assert status == 429 and "files of this tenant are in no vector store" in told and "delete some" in told
        with service.client() as rest:
            put_in(rest, [{"id": "a", "text": text.decode()}])
        client.files.delete(files[0])
        files[0] = client.files.create(file=("a.txt", text), purpose="assistants").id
        store = client.vector_stores.create(name="letters", file_ids=files).id
        assert len(client.vector_stores.files.list(store).data) == 5


def told_everywhere(client: OpenAI, store: str, file: str) -> list[tuple[int, str]]:
    """What each way to name a file is told."""

    def told(act: Callable[[OpenAI, str, str], object]) -> tuple[int, str]:
        return refused(lambda: act(client, store, file))

    return [told(each) for each in NOWHERE]


@given(NAMES)
def test_every_name_comes_back_from_an_id_that_no_path_changes(name: str) -> None:
    for ids in (VECTOR_STORES, FILES):
        assert ids.name_of(ids.id_of(name)) == name
        assert re.fullmatch(r"[\w.~-]+", ids.id_of(name), re.ASCII)


def test_plain_names_stand_as_they_are_and_may_be_written_by_hand() -> None:
    assert (VECTOR_STORES.id_of("handbook"), FILES.id_of("report-7.pdf")) == ("vs_handbook", "file-report-7.pdf")
    assert (VECTOR_STORES.name_of("vs_50 % more"), FILES.name_of("file-a/b")) == ("50 % more", "a/b")


def test_ids_of_another_kind_stand_for_nothing() -> None:
    assert [VECTOR_STORES.name_of(each) for each in ("file-a", "vs_", "", "vs_a~00b")] == [None] * 4
    assert [FILES.name_of(each) for each in ("vs_a", "file-", "")] == [None] * 3
