"""What several folders of tests need: one S3 server for the whole run."""

from collections.abc import Iterator

import pytest

from tests.servers.s3 import S3Server, s3_server


@pytest.fixture(scope="session")
def server() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server
