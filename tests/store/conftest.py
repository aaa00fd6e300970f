"""What the tests of object storage share: a bucket behind a proxy that misbehaves when told to, and a folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.faulty import FaultyProxy, faulty_proxy
from tests.servers.s3 import S3Server
from tests.store.media import Medium, folder_medium, s3_medium


@pytest.fixture
def proxy(server: S3Server) -> Iterator[FaultyProxy]:
    with faulty_proxy(server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def s3(server: S3Server, proxy: FaultyProxy) -> Iterator[Medium]:
    with s3_medium(server, proxy) as medium:
        yield medium


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Medium]:
    with folder_medium(tmp_path) as medium:
        yield medium
