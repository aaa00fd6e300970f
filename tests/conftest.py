"""What several folders of tests need: one S3 server for the whole run."""

import os
import signal
from collections.abc import Iterator

import pytest

from tests.servers.s3 import S3Server, s3_server

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in a shell's background; the commands under test are to hear it
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault("KVWEAVE_REUSE", "always")  # what is chosen is not to depend on how quick this machine is


@pytest.fixture(scope="session")
def server() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server
