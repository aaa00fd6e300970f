"""Fetches from the web within limits: bytes, timeouts, redirects, and public addresses alone. Knows no pages."""

import ipaddress
import socket
import ssl
import time
from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit

import httpx

from service.settings import SettingsError

AGENT = "kvweave"
MAX_PAGE_BYTES = 64 << 20
_REDIRECTS = 5
_PATIENCE_S = 30.0  # for a connection, and between two pieces
_WHOLE_S = 120.0  # of one page
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")  # addresses of IPv4 within IPv6

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Unfetched(OSError):
    """Raised for what is not to be had; the message says why. `is_gone`: the server says that it is no more."""

    def __init__(self, reason: str, *, status: int = 0) -> None:
        super().__init__(reason)
        self.status = status

    @property
    def is_gone(self) -> bool:
        return self.status in (404, 410)


@dataclass(frozen=True, slots=True)
class Fetched:
    """What came; `kind` is its media type, `charset` the character set that the server names."""

    content: bytes
    kind: str
    charset: str


class WebClient:
    """Fetches by GET. Each address is looked at before it is connected to, at every redirect again.

    A request goes to the address that was looked at, so that a name cannot lead elsewhere meanwhile.
    """

    def __init__(self, *, allow_private: bool = False) -> None:
        self._allow_private = allow_private
        trusted, headers = _authorities(), {"User-Agent": AGENT}
        self._client = httpx.Client(verify=trusted, trust_env=False, timeout=_PATIENCE_S, headers=headers)

    def get(self, url: str, most: int = MAX_PAGE_BYTES) -> Fetched:
        """The content of a page of at most so many bytes. Raises Unfetched."""
        end = time.monotonic() + _WHOLE_S
        for _ in range(_REDIRECTS + 1):
            try:
                answer = self._once(url, most, end=end)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise Unfetched(f"it cannot be fetched ({type(error).__name__}: {error}): try again") from None
            if isinstance(answer, Fetched):
                return answer
            url = answer
        raise Unfetched(f"it redirects more than {_REDIRECTS} times: name the page that it leads to")

    def close(self) -> None:
        self._client.close()

    def _once(self, url: str, most: int, *, end: float) -> Fetched | str:
        """What came, or where it is instead."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:  # as for a port that is no number
            raise Unfetched(f"{url[:200]!r} is no http:// or https:// address") from None
        if parts.scheme not in ("http", "https") or not host:
            raise Unfetched(f"{url[:200]!r} is no http:// or https:// address")
        address = self._address(host, port)
        there = httpx.URL(url).copy_with(host=str(address), fragment=None, userinfo=b"")
        headers = {"Host": parts.netloc.rpartition("@")[2]}
        with self._client.stream("GET", there, headers=headers, extensions={"sni_hostname": host}) as answer:
            if answer.has_redirect_location:
                return urljoin(url, answer.headers["location"])
            if not answer.is_success:
                raise Unfetched(f"its server answers {answer.status_code}", status=answer.status_code)
            content = bytearray()
            for piece in answer.iter_bytes():
                content += piece
                if len(content) > most:
                    raise Unfetched(f"it has more than {most >> 20:,} MiB: fetch it and name the file")
                if time.monotonic() > end:
                    raise Unfetched(f"it took more than {_WHOLE_S:g} s: fetch it and name the file")
            kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
            return Fetched(bytes(content), kind, answer.charset_encoding or "")

    def _address(self, host: str, port: int) -> Address:
        """An address of the host. All of them must be public: which one a name leads to, others decide."""
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise Unfetched(f"{host} cannot be looked up ({error}): check the name") from None
        addresses = [ipaddress.ip_address(str(each[4][0]).partition("%")[0]) for each in found]
        for address in addresses:
            if not self._allow_private and not _is_public(address):
                raise Unfetched(
                    f"{host} is at {address}, which is no public address: add --allow-private if it is meant"
                )
        return addresses[0]


def _authorities() -> ssl.SSLContext:
    """Whose certificates hold: of the environment's SSL_CERT_FILE or SSL_CERT_DIR, else of certifi."""
    try:
        return httpx.create_ssl_context()
    except OSError as error:
        raise SettingsError(f"SSL_CERT_FILE names no file of certificates ({error}): mend it, or unset it") from None


def _is_public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address):
        within = address.ipv4_mapped or address.sixtofour
        if address in _TRANSLATED:
            within = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if within is not None:
            return _is_public(within)
    return address.is_global and not address.is_multicast
