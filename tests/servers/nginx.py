"""nginx before services on loopback, with the configuration that is delivered, as an unprivileged user."""

import os
import pwd
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import service
from tests.servers.free_port import free_port

DELIVERED = Path(service.__file__).parent / "deploy" / "nginx.conf"
_SERVERS = re.compile(r"^( +server )[\w-]+:\d+( max_fails.*\n)", re.MULTILINE)


@contextmanager
def nginx(urls: Sequence[str]) -> Iterator[str | None]:
    """The address of an nginx before these services; None where this machine has none."""
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="kvweave-nginx-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        port = free_port()
        (folder / "nginx.conf").write_text(_told(folder, urls, port=port))
        (folder / "log").touch()
        user = "nobody" if os.geteuid() == 0 else None
        if user:
            entry = pwd.getpwnam(user)
            for each in (folder, *folder.iterdir()):
                os.chown(each, entry.pw_uid, entry.pw_gid)
        command = [program, "-p", folder, "-c", folder / "nginx.conf", "-g", "daemon off;"]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, user=user)
        try:
            while not _listens(port):
                assert process.poll() is None, (folder / "log").read_text()
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()


def _told(folder: Path, urls: Sequence[str], *, port: int) -> str:
    """The configuration with these services, and everything else on this machine."""
    told = DELIVERED.read_text(encoding="utf-8").replace("/tmp/", f"{folder}/")
    told = told.replace("listen 8000", f"listen 127.0.0.1:{port}")
    (line, *_) = _SERVERS.finditer(told)
    servers = "".join(f"{line[1]}{urlsplit(url).netloc}{line[2]}" for url in urls)
    return _SERVERS.sub("", told[: line.start()]) + servers + _SERVERS.sub("", told[line.start() :])


def _listens(port: int) -> bool:
    with socket.socket() as trying:
        return trying.connect_ex(("127.0.0.1", port)) == 0
