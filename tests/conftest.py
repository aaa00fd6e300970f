"""What several folders of tests need: one S3 server and one PostgreSQL for the whole run."""

import gc
import os
import signal
import ssl
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.servers.postgres import PostgresServer, postgres_server
from tests.servers.s3 import S3Server, s3_server

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in a shell's background; the commands under test are to hear it
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault("KVWEAVE_EMBEDDER", "none")  # nothing is fetched
os.environ.setdefault("KVWEAVE_REUSE", "always")  # what is chosen is not to depend on how quick this machine is

if not Path("/dev/nvidiactl").exists():  # kernels for a card run without one; triton looks when it is imported
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Each client would read all certificates of the world, a thirtieth of a second, and talk to loopback without any.
ssl.create_default_context = cache(ssl.create_default_context)

# How long an example takes, and how long it takes to draw one, is this machine's matter.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

WITHOUT = "PostgreSQL is not installed: Debian's package is `postgresql`"
WITHOUT_NGINX = "nginx is not installed: Debian's package is `nginx-light`"
WITHOUT_BROWSER = "Chromium is not installed: Debian's packages are `chromium` and `chromium-driver`"


LONGEST = (  # half a minute to two minutes each
    "tests/service/test_builtin.py",
    "tests/service/truth/postgres/test_serving_postgres.py",
    "tests/service/truth/postgres/test_replicas.py",
    "tests/blend/test_engine.py",
    "tests/blend/test_families.py",
    "tests/blend/test_fuse_properties.py",
    "tests/blend/test_layer_graphs.py",
    "tests/blend/test_memory.py",
    "tests/blend/test_placement.py",
    "tests/service/test_context_deletes.py",
    "tests/service/test_precompute_edits.py",
    "tests/service/test_kill.py",
    "tests/service/test_precompute_ray.py",
    "tests/service/test_openapi.py",
    "tests/training/test_train.py",
)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What tests import stays: millions of objects, through which the collector would look again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files come first: at the end no process goes on alone with one."""
    items.sort(key=lambda item: item.nodeid.partition("::")[0] not in LONGEST)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says which files' tests were left out, as nobody would look for dots that are an s."""
    for reason in (WITHOUT, WITHOUT_NGINX, WITHOUT_BROWSER):
        skipped = [each for each in terminalreporter.stats.get("skipped", []) if reason in str(each.longrepr)]
        if skipped:
            files = sorted({each.nodeid.partition("::")[0] for each in skipped})
            terminalreporter.write_line(f"left out {len(skipped)} tests of {', '.join(files)}: {reason}", yellow=True)


@pytest.fixture(scope="session")
def server() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        if server is None:
            pytest.skip(WITHOUT)
        yield server
