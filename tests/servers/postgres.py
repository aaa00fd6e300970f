"""A PostgreSQL server for tests: on loopback, as an unprivileged user, in a folder that goes with it.

It is Debian's, or wherever `pg_config` says. Where there is none, the tests that need it are left out and say so.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from uuid import uuid4

import psycopg

from tests.servers.free_port import free_port

SECRET = "kv-secret-4711"  # the password of whoever the service logs in as
_PLACES = ("/usr/lib/postgresql/17/bin", "/usr/lib/postgresql/16/bin", "/usr/lib/postgresql/15/bin")
_OPTIONS = {"listen_addresses": "127.0.0.1", "fsync": "off", "max_connections": "120", "shared_buffers": "64MB"}


def binaries() -> Path | None:
    """The folder of `initdb` and `postgres`."""
    named = shutil.which("initdb")
    found = [Path(named).resolve().parent] if named else []
    return next((each for each in (*found, *map(Path, _PLACES)) if (each / "postgres").exists()), None)


class PostgresServer:
    """A server over a folder, on a port that stays the same when it is started again."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._programs = programs
        self._process: subprocess.Popen[bytes] | None = None
        self._user = "nobody" if os.geteuid() == 0 else None
        if self._user:
            entry = pwd.getpwnam(self._user)
            os.chown(folder, entry.pw_uid, entry.pw_gid)
        command = [programs / "initdb", "-D", folder / "data", "-U", "postgres", "-A", "trust", "-E", "UTF8", "-N"]
        subprocess.run([*command, "--locale=C.UTF-8"], check=True, capture_output=True, cwd=folder, user=self._user)

    def start(self) -> None:
        """Returns when it answers."""
        options = [f"--{name}={value}" for name, value in _OPTIONS.items()]
        options += [f"--port={self.port}", f"--unix_socket_directories={self.folder}"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", self.folder / "data", *options],
                stdout=log, stderr=log, cwd=self.folder, user=self._user,
            )  # fmt: skip
        while True:
            try:
                psycopg.connect(self._url("postgres", "postgres"), connect_timeout=5).close()
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None:
                    raise AssertionError((self.folder / "log").read_text()) from None

    def stop(self, *, how: signal.Signals = signal.SIGINT) -> None:
        """Ends it, and every connection: SIGINT as a restart does, SIGQUIT as a crash."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()
            self._process = None

    def database(self, *, beside: str = "") -> str:
        """The address of a new database, and of a user who is no superuser and owns it, and maybe another."""
        name = f"kv_{uuid4().hex[:12]}"
        user = beside.rpartition("/")[2] or name
        with closing(psycopg.connect(self._url("postgres", "postgres"), autocommit=True)) as connection:
            if user == name:
                connection.execute(f"CREATE ROLE {user} LOGIN PASSWORD '{SECRET}'")  # pyright: ignore
            connection.execute(f"CREATE DATABASE {name} OWNER {user}")  # pyright: ignore
        return f"postgresql://{user}:{SECRET}@127.0.0.1:{self.port}/{name}"

    def exchange(self, url: str, other: str) -> None:
        """Gives each of two databases the other's name, as a restore does; all connections to them end."""
        one, two = (each.rpartition("/")[2] for each in (url, other))
        end = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname IN (%s, %s)"
        with closing(psycopg.connect(self._url("postgres", "postgres"), autocommit=True)) as connection:
            for name in (one, two):
                connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")  # pyright: ignore
            connection.execute(end, (one, two))
            for name, new in ((one, "between"), (two, one), ("between", two)):
                connection.execute(f"ALTER DATABASE {name} RENAME TO {new}")  # pyright: ignore
            for name in (one, two):
                connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")  # pyright: ignore

    def run(self, program: str, url: str, *words: str) -> None:
        """Runs one of PostgreSQL's own programs on a database."""
        command = [self._programs / program, f"--dbname={url}", *words]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr

    def files(self, url: str) -> list[Path]:
        """The files of a database's tables, indexes and statistics, with all that is in memory until now."""
        with closing(psycopg.connect(self._url("postgres", "postgres"), autocommit=True)) as connection:
            connection.execute("CHECKPOINT")
            found = connection.execute("SELECT oid FROM pg_database WHERE datname = %s", (url.rpartition("/")[2],))
            [oid] = found.fetchone() or []
        return sorted((self.folder / "data" / "base" / str(oid)).iterdir())

    def _url(self, user: str, name: str) -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{name}"


@contextmanager
def postgres_server() -> Iterator[PostgresServer | None]:
    """A server for the length of the block; None where this machine has none."""
    programs = binaries()
    if programs is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="kvweave-postgres-", ignore_cleanup_errors=True) as name:
        server = PostgresServer(Path(name), programs)
        server.start()
        try:
            yield server
        finally:
            server.stop()
