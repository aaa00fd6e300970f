"""What is read from object storage before it is asked for: never more than the memory for it, and never in the way."""

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from uuid import uuid4

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.blob import Blob, write_head
from store.errors import BadBlob, Miss, MissReason, StoreError
from store.key import CacheKey, Scope
from store.objects.object_blob import ReadLease, ReadMemory
from store.objects.object_client import ObjectClient
from store.objects.object_store import ObjectBlobStore
from store.reader import BlobReader
from tests.servers.faults import Fault
from tests.servers.faulty import FaultyProxy
from tests.servers.s3 import S3Server
from tests.store.contract import opened
from tests.store.media import Medium, is_blob, sized
from tests.store.samples import key

MB = 1_000_000
HEAD_BYTES = 1 << 16  # what is read of a blob without memory for more
LIMIT = 16 << 20


def of(tenant: str, number: int) -> Blob:
    """Three megabytes of a tenant."""
    large = sized([MB] * 3)
    head = msgspec.structs.replace(large.head, tenant=tenant, chunk=f"chunk-{number}")
    return Blob(head, write_head(head), large.frames)


@contextmanager
def store_of(server: S3Server, proxy: FaultyProxy, blobs: list[Blob]) -> Generator[ObjectBlobStore]:
    client = ObjectClient(server.connect(uuid4().hex, through=proxy.endpoint), "bench")
    with ObjectBlobStore(client, memory=ReadMemory(LIMIT)) as store:
        store.put_all(blobs)
        proxy.clear()
        yield store


def begun(store: ObjectBlobStore, *keys: CacheKey) -> list[BlobReader]:
    readers = [store.open(each) for each in keys]
    found = [each for each in readers if isinstance(each, BlobReader)]
    for reader in found:
        reader.begin()
    return found


def answered(proxy: FaultyProxy, blobs: list[Blob]) -> Counter[str]:
    """Bytes of blobs that the server sent, by tenant."""
    sizes = {blob.head.key.text: blob.nbytes for blob in blobs}
    sent = Counter[str]()
    for request in proxy.requests:
        name = request.path.partition("/blobs/")[2]
        start, end = (request.range or "").removeprefix("bytes=").split("-")
        sent[name.partition("/")[0]] += min(int(end) + 1, sizes[name]) - int(start)
    return sent


def test_no_more_is_read_ahead_than_there_is_memory_for_and_a_tenant_leaves_some(
    server: S3Server, proxy: FaultyProxy
) -> None:
    blobs = [of(tenant, number) for tenant, count in (("greedy", 12), ("late", 2)) for number in range(count)]
    with store_of(server, proxy, blobs) as store:
        readers = begun(store, *(blob.head.key for blob in blobs))
        store.close()  # returns when all that was begun is there
        sent = answered(proxy, blobs)
        assert len(readers) == len(blobs)
        assert sent.total() <= LIMIT + len(blobs) * HEAD_BYTES
        assert 6 * MB < sent["greedy"] <= LIMIT / 2 + len(blobs) * HEAD_BYTES
        assert sent["late"] > 3 * MB


def test_what_was_begun_is_there_and_the_rest_is_read_when_it_is_asked_for(
    server: S3Server, proxy: FaultyProxy
) -> None:
    blobs = [of("acme", number) for number in range(8)]
    with store_of(server, proxy, blobs) as store:
        readers = begun(store, *(blob.head.key for blob in blobs))
        assert [reader.blob() for reader in readers] == blobs
        del readers
        proxy.clear()
        first, *_ = begun(store, blobs[0].head.key)  # the memory is free again
        store.close()
        assert first.blob() == blobs[0]
        assert answered(proxy, blobs)["acme"] - blobs[0].nbytes in range(MB)  # one frame is torn


def test_a_delete_wins_over_what_was_read_ahead(s3: Medium) -> None:
    store, written = s3.open(), sized([MB] * 3)
    store.put(written)
    opened(store, written.head.key).begin()
    store.delete(Scope("acme"))
    found = store.open(written.head.key)
    assert isinstance(found, Miss) and found.reason is MissReason.ABSENT


def test_an_error_of_one_blob_read_ahead_is_its_own(server: S3Server, proxy: FaultyProxy) -> None:
    bad, good = of("acme", 1), of("acme", 2)
    with store_of(server, proxy, [bad, good]) as store:
        proxy.always(
            Fault.status(403),
            where=lambda request: is_blob(request) and "chunk-1" in request.path and request.range != "bytes=0-1048575",
        )
        first, second = begun(store, bad.head.key, good.head.key)
        assert second.blob() == good
        with pytest.raises((StoreError, BadBlob)):
            first.blob()


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(-60, 60)), max_size=60))
def test_nobody_holds_more_than_it_leaves(calls: list[tuple[str, int]]) -> None:
    memory, held = ReadMemory(100), Counter[str]()
    for tenant, nbytes in calls:
        if nbytes < 0:
            back = min(-nbytes, held[tenant])
            memory.give(tenant, back)
            held[tenant] -= back
        elif memory.take(tenant, nbytes):
            held[tenant] += nbytes
            assert held[tenant] <= 100 - held.total()
        else:
            assert held[tenant] + nbytes > 100 - held.total() - nbytes


def test_a_lease_that_is_let_go_of_gives_back_what_it_holds() -> None:
    memory = ReadMemory(100)
    lease = ReadLease(memory, "acme")
    assert lease.take(50) and not lease.take(1)
    lease.give(10)
    del lease
    assert ReadLease(memory, "acme").take(50)


def test_the_key_of_a_blob_that_is_absent_holds_nothing(server: S3Server, proxy: FaultyProxy) -> None:
    with store_of(server, proxy, []) as store:
        for number in range(100):
            assert isinstance(store.open(key(number)), Miss)
        assert vars(store)["_memory"].take("acme", LIMIT // 2)
