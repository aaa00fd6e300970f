"""Pages over TLS: the connection goes to the address that was looked at, and the certificate is the name's."""

import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import certifi
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from service.documents.web_client import Unfetched, WebClient
from service.settings import SettingsError

NAME = "pages.example"


def certificate(name: str, folder: Path) -> Path:
    """A certificate that signs itself, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    file = folder / f"{name}.pem"
    file.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return file


@pytest.fixture(params=[NAME, "another.example"])
def name(request: pytest.FixtureRequest) -> str:
    """Whose certificate the server has."""
    return request.param


@pytest.fixture(params=["", "SSL_CERT_FILE"])
def site(name: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The page's address at a server with the certificate of this name; any name leads there.

    The certificate is trusted as one of certifi's, or of what this variable of the environment names.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = str(self.headers["Host"]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None: ...

    file = certificate(name, tmp_path)
    for variable in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(variable, raising=False)
    if request.param:
        monkeypatch.setenv(request.param, str(file))
    else:
        monkeypatch.setattr(certifi, "where", lambda: str(file))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        there = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", server.server_port))
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [there])
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"https://{NAME}:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_authorities_that_are_not_there_are_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere.pem")
    with pytest.raises(SettingsError, match=r"SSL_CERT_FILE names no file of certificates .*: mend it, or unset it"):
        WebClient()


def test_a_page_comes_where_the_certificate_is_of_its_name(site: str, name: str) -> None:
    client = WebClient(allow_private=True)
    if name == NAME:
        assert client.get(site).content.decode() == site.removeprefix("https://").rstrip("/")
    else:
        with pytest.raises(Unfetched, match="certificate"):
            client.get(site)
    client.close()
