"""An S3 server with an empty bucket, for tests: moto's on loopback, or the one that `TEST_S3_URL` names.

Knows nothing of what is stored. The variable holds `s3://bucket/prefix?endpoint=…&access_key=…&secret_key=…&region=…`.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
from obstore.store import S3Store

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

VARIABLE = "TEST_S3_URL"


@dataclass(frozen=True, slots=True)
class S3Server:
    """Where a bucket is and who may use it. Tests share the bucket: each works below a prefix of its own."""

    endpoint: str
    bucket: str
    access_key: str
    secret_key: str
    region: str
    prefix: str = ""

    def connect(
        self,
        prefix: str,
        *,
        through: str | None = None,
        retry: RetryConfig | None = None,
        client: ClientConfig | None = None,
    ) -> S3Store:
        """A store below `prefix`; `through` is the endpoint of a proxy in front of the server."""
        options: ClientConfig = {"allow_http": True, **(client or {})}
        return S3Store(
            self.bucket,
            prefix="/".join(part for part in (self.prefix, prefix) if part),
            endpoint=through or self.endpoint,
            access_key_id=self.access_key,
            secret_access_key=self.secret_key,
            region=self.region,
            virtual_hosted_style_request=False,
            client_options=options,
            retry_config=retry,
        )

    def url(
        self, prefix: str, *, through: str | None = None, bucket: str | None = None, timeout_s: float = 10.0
    ) -> str:
        """The same as a store URL; another `bucket` is one that is not there."""
        options = {
            "endpoint": through or self.endpoint,
            "access_key": self.access_key,
            "secret_key": self.secret_key,
            "region": self.region,
            "timeout": str(timeout_s),
        }
        path = "/".join(part for part in (bucket or self.bucket, self.prefix, prefix) if part)
        return f"s3://{path}?{urlencode(options)}"


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """The server that the environment names, else moto's for the length of the block."""
    named = os.environ.get(VARIABLE)
    if named is not None:
        yield parse_server(named)
        return
    with moto_server() as server:
        yield server


@contextmanager
def moto_server() -> Iterator[S3Server]:
    """Starts moto's server in a process of its own: moto keeps one global state, and would turn warnings of its own
    into failed requests where the test run makes warnings errors. It checks no signature and no key."""
    command = [sys.executable, "-P", __file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            endpoint = child.stdout.readline().strip()
            if not endpoint:
                raise RuntimeError("moto's server did not start; is moto[server] installed?")
            server = S3Server(endpoint, "kvweave-tests", "test-access-key", "test-secret-key", "us-east-1")
            httpx.put(f"{endpoint}/{server.bucket}", trust_env=False).raise_for_status()
            yield server
        finally:
            child.terminate()


def parse_server(url: str) -> S3Server:
    parts = urlsplit(url)
    if parts.scheme != "s3" or not parts.netloc:
        raise ValueError(f"{VARIABLE} must look like s3://bucket/prefix?endpoint=…, got {url!r}")
    options = {key: values[-1] for key, values in parse_qs(parts.query, strict_parsing=True).items()}
    region = options.pop("region", "us-east-1")
    if options.keys() != {"endpoint", "access_key", "secret_key"}:
        raise ValueError(f"{VARIABLE} needs endpoint, access_key and secret_key, got {sorted(options)}")
    return S3Server(bucket=parts.netloc, region=region, prefix=parts.path.strip("/"), **options)


def _run_moto() -> None:
    """Serves until the parent closes our standard input, so that no server outlives a killed test run."""
    from moto.s3.responses import S3Response  # noqa: PLC0415  # heavy, and only this process needs it
    from moto.server import ThreadedMotoServer  # noqa: PLC0415  # the same

    put, writing = S3Response.put_object, threading.Lock()

    def put_alone(self: S3Response) -> tuple[int, dict[str, object], str | bytes]:
        """S3 creates what is absent in one step. moto looks, then writes: both of two at once would have."""
        with writing:
            return put(self)

    S3Response.put_object = put_alone
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    sys.stdout.write(f"http://{host}:{port}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    _run_moto()
