"""The pages that an address names: itself, or those of a sitemap, as robots.txt allows. Bounded in number and bytes."""

import mimetypes
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urldefrag, urljoin, urlsplit
from xml.etree import ElementTree

import httpx
from blake3 import blake3
from protego import Protego

from retriever.readers.decode import as_utf8
from retriever.readers.files import SUFFIXES
from retriever.readers.reading import ReadingProblem
from service.documents.corpus_listing import CorpusFile, Vanished
from service.documents.web_client import AGENT, Fetched, Unfetched, WebClient

MAX_PAGES = 5_000  # of an argument
MAX_BYTES = 2 << 30  # of all pages of an argument
MAX_S = 3600.0
_SITEMAP_BYTES = 52_428_800  # as the protocol has it
_ROBOTS_BYTES = 512_000
_LONGEST_DELAY_S = 10.0
_PAGES = ("text/html", "application/xhtml+xml")


class WebPages:
    """The pages of one argument. What came lies in `folder` until the run has read it."""

    def __init__(self, url: str, client: WebClient, *, folder: str) -> None:
        self.base = urldefrag(url).url
        self._client = client
        self._folder = folder
        self._robots: dict[str, Protego] = {}
        self._nbytes = 0

    def files(self) -> Iterator[CorpusFile | Vanished | ReadingProblem]:
        """Fetches them in order."""
        end = time.monotonic() + MAX_S
        try:
            first = self._fetched(self.base)
        except Unfetched as error:
            yield self._told(self.base, error)
            return
        if not _is_sitemap(first):
            yield self._file(self.base, first)
            return
        for number, found in enumerate(self._listed(self.base, _unpacked(first.content), depth=1)):
            if isinstance(found, ReadingProblem):
                yield found
                continue
            if number >= MAX_PAGES or self._nbytes > MAX_BYTES or time.monotonic() > end:
                limits = f"{MAX_PAGES:,} pages, {MAX_BYTES >> 30} GiB and {MAX_S / 60:g} minutes"
                yield ReadingProblem(self.base, f"it lists more than {limits} allow: name its parts one by one")
                return
            try:
                yield self._file(found, self._fetched(found))
            except Unfetched as error:
                yield self._told(found, error)

    def _listed(self, sitemap: str, content: bytes, *, depth: int) -> Iterator[str | ReadingProblem]:
        """The addresses of a sitemap, and of those that it lists, all of its own host."""
        try:
            root = ElementTree.fromstring(content)
        except ElementTree.ParseError as error:
            yield ReadingProblem(sitemap, f"the sitemap is no XML ({error})")
            return
        own = root.tag[: root.tag.rfind("}") + 1]  # pictures and videos of a page have a loc in another namespace
        for each in root.iterfind(f"*/{own}loc"):
            if not (place := (each.text or "").strip()):
                continue
            try:
                url = urldefrag(urljoin(sitemap, place)).url
                is_own = httpx.URL(url).netloc == httpx.URL(self.base).netloc
            except (httpx.InvalidURL, ValueError) as error:
                yield ReadingProblem(place, f"it is no address ({error})")
                continue
            if not is_own:
                yield ReadingProblem(url, "it is on another host than its sitemap: name it itself")
            elif not root.tag.endswith("sitemapindex"):
                yield url
            elif depth:
                try:
                    inner = self._fetched(url, most=_SITEMAP_BYTES)
                except Unfetched as error:
                    yield ReadingProblem(url, str(error))
                else:
                    yield from self._listed(url, _unpacked(inner.content), depth=depth - 1)

    def _fetched(self, url: str, most: int | None = None) -> Fetched:
        robots = self._rules(url)
        if not robots.can_fetch(url, AGENT):
            raise Unfetched("its host's robots.txt does not allow it: ask its owner, or leave it out")
        time.sleep(min(robots.crawl_delay(AGENT) or 0.0, _LONGEST_DELAY_S))
        return self._client.get(url) if most is None else self._client.get(url, most)

    def _rules(self, url: str) -> Protego:
        """What the host's robots.txt says; where it has none, all is allowed."""
        parts = urlsplit(url)
        host = f"{parts.scheme}://{parts.netloc}"
        if host not in self._robots:
            try:
                text = self._client.get(f"{host}/robots.txt", _ROBOTS_BYTES).content.decode("utf-8", "replace")
            except Unfetched as error:
                if not 400 <= error.status < 500:
                    raise Unfetched(f"its host's robots.txt cannot be read ({error}): try again") from None
                text = ""
            self._robots[host] = Protego.parse(text)
        return self._robots[host]

    def _file(self, url: str, fetched: Fetched) -> CorpusFile | ReadingProblem:
        suffix = _suffix(url, fetched.kind)
        if not suffix:
            read = ", ".join(SUFFIXES)
            return ReadingProblem(url, f"it is of the type {fetched.kind!r}, which is not read; these are: {read}")
        is_text = fetched.kind.startswith("text/") or fetched.kind in _PAGES
        content = as_utf8(fetched.content, fetched.charset) if is_text else fetched.content
        digest = blake3(content).hexdigest(16)
        path = Path(self._folder) / f"{digest}{suffix}"
        path.write_bytes(content)
        self._nbytes += len(content)
        return CorpusFile(path, url, self.base, len(content), digest)

    def _told(self, url: str, error: Unfetched) -> Vanished | ReadingProblem:
        return Vanished(url, str(error)) if error.is_gone else ReadingProblem(url, str(error))


def _is_sitemap(fetched: Fetched) -> bool:
    head = _unpacked(fetched.content, 4096)
    return fetched.kind not in _PAGES and (b"<urlset" in head or b"<sitemapindex" in head)


def _unpacked(content: bytes, most: int = _SITEMAP_BYTES) -> bytes:
    """The sitemap's XML, which may be packed by gzip."""
    if not content.startswith(b"\x1f\x8b"):
        return content[:most]
    try:
        return zlib.decompressobj(wbits=31).decompress(content, most)
    except zlib.error:
        return b""  # no XML, which is said


def _suffix(url: str, kind: str) -> str:
    """How a file of that kind would end; nothing where none is read."""
    if kind in _PAGES:
        return ".html"
    ending = Path(urlsplit(url).path).suffix.lower()
    guessed = {"text/markdown": ".md", "text/x-rst": ".rst"}.get(kind) or mimetypes.guess_extension(kind) or ""
    return next((each for each in (ending, guessed) if each in SUFFIXES), "")
