"""`kvweave precompute` on pages of the web: sitemaps, what vanishes, limits, and addresses that are not public."""

import gzip
import ipaddress
import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from service.documents import web_client, web_pages
from service.documents.web_client import Unfetched, WebClient
from tests.service.test_precompute_plans import Near, small_place
from tests.service.test_precompute_sources import texts

HTML = "text/html; charset=utf-8"


@dataclass
class Site:
    """A server on loopback. `pages`: by path, the kind and the content, or a status or another place."""

    url: str = ""
    pages: dict[str, tuple[str, bytes] | int | str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def page(self, path: str, words: str) -> None:
        self.pages[path] = (HTML, f"<title>T</title><p>{words}".encode())

    def sitemap(self, path: str, *pages: str, kind: str = "urlset") -> bytes:
        places = "".join(f"<url><loc>{self.url}{each}</loc></url>" for each in pages)
        content = f'<{kind} xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{places}</{kind}>'.encode()
        self.pages[path] = ("application/xml", content)
        return content


@pytest.fixture
def site() -> Iterator[Site]:
    served = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.asked.append(self.path)
            found = served.pages.get(self.path, 404)
            if isinstance(found, tuple):
                self.send_response(200)
                self.send_header("Content-Type", found[0])
                self.end_headers()
                with suppress(OSError):
                    self.wfile.write(found[1])
            else:
                self.send_response(302 if isinstance(found, str) else found)
                if found != "":
                    self.send_header("Location", found if isinstance(found, str) else "/")
                self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        served.url = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield served
        server.shutdown()
        thread.join()


def run(place: Near, *arguments: str, status: int = 0) -> tuple[dict[str, object], list[str]]:
    """The last event, and the places of the problems."""
    told, _ = place.command("precompute", *arguments, "--allow-private", "--json", status=status)
    done = json.loads(told.splitlines()[-1])
    return done, [each["place"] for each in done["problems"]]


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("http://127.0.0.1:99999/", "no http:// or https:// address"),
        ("http://[::1/", "no http:// or https:// address"),
        ("http://127.0.0.1:1/\x7f", "cannot be fetched"),
        ("/nowhere", "answers 302"),
        ("/strange", "cannot be fetched"),
    ],
)
def test_what_a_server_sends_wrongly_is_told(site: Site, path: str, told: str) -> None:
    site.pages["/nowhere"], site.pages["/strange"] = "", "http://127.0.0.1:port/"
    with pytest.raises(Unfetched, match=told):
        WebClient(allow_private=True).get(path if "://" in path else site.url + path)


def test_a_sitemap_that_is_packed_wrongly_is_named(tmp_path: Path, site: Site) -> None:
    site.pages["/broken.xml.gz"] = ("application/gzip", b"\x1f\x8b and no more")
    site.sitemap("/sitemap.xml", "/broken.xml.gz", kind="sitemapindex")
    assert run(small_place(tmp_path), f"{site.url}/sitemap.xml", status=1)[1] == [f"{site.url}/broken.xml.gz"]


def test_a_host_of_other_letters_is_the_same_and_what_is_no_address_is_named(tmp_path: Path, site: Site) -> None:
    site.page("/a", "The lamp.")
    content = site.sitemap("/sitemap.xml", "/a").replace(b"</urlset>", b"<url><loc>http://[lamp</loc></url></urlset>")
    site.pages["/sitemap.xml"] = ("application/xml", content.replace(b"127.0.0.1", b"LOCALHOST"))
    sitemap = f"{site.url}/sitemap.xml".replace("127.0.0.1", "localhost")
    done, problems = run(small_place(tmp_path), sitemap, status=1)
    assert (done["documents"], problems) == (1, ["http://[lamp"])


def test_a_sitemap_is_read_and_what_vanishes_is_pruned(tmp_path: Path, site: Site) -> None:
    site.pages["/robots.txt"] = ("text/plain", b"User-agent: *\nDisallow: /*.secret\n")
    site.page("/a", "The lamp of page a.")
    site.pages["/b.md"] = ("text/markdown", b"# B\n\nThe lamp of page b.\n")
    site.page("/c.secret", "Not for machines.")
    site.pages["/d.png"] = ("image/png", b"x")
    site.pages["/e"] = "/a2"
    site.page("/a2", "Behind a redirect.")
    inner = site.sitemap("/inner.xml", "/a", "/b.md", "/c.secret", "/d.png", "/e")
    site.pages["/inner.xml.gz"] = ("application/gzip", gzip.compress(inner))
    site.sitemap("/sitemap.xml", "/inner.xml.gz", kind="sitemapindex")
    place, sitemap = small_place(tmp_path), f"{site.url}/sitemap.xml"

    _, problems = run(place, sitemap, status=1)

    assert problems == [f"{site.url}/c.secret", f"{site.url}/d.png"]
    assert "/c.secret" not in site.asked and site.asked.count("/robots.txt") == 1
    names = {f"{site.url}/a", f"{site.url}/b.md", f"{site.url}/e"}
    assert texts(place).keys() == names
    assert texts(place)[f"{site.url}/e"] == "Behind a redirect."

    site.pages["/a"], site.pages["/b.md"] = 410, ("text/markdown", b"# B\n\nAnother lamp of page b.\n")
    assert run(place, sitemap, "--prune", status=1)[0]["removed"] == 0, "nothing is pruned beside a problem"
    site.sitemap("/inner.xml", "/a", "/b.md")
    site.pages["/inner.xml.gz"] = site.pages["/inner.xml"]
    done, problems = run(place, sitemap, "--prune")
    assert (problems, done["removed"], done["unchanged"]) == ([], 2, 1)
    assert texts(place) == {f"{site.url}/b.md": "# B\n\nAnother lamp of page b.\n"}


def test_pictures_that_a_sitemap_lists_are_no_pages(tmp_path: Path, site: Site) -> None:
    site.page("/a", "The lamp of page a.")
    image = b"<i:image><i:loc>http://cdn.example/a.jpg</i:loc></i:image></url>"
    content = site.sitemap("/sitemap.xml", "/a").replace(b"</url>", image).replace(b"<urlset", b'<urlset xmlns:i="i"')
    site.pages["/sitemap.xml"] = ("application/xml", content)
    done, problems = run(small_place(tmp_path), f"{site.url}/sitemap.xml", "--prune")
    assert (problems, done["documents"]) == ([], 1)


def test_the_character_set_that_a_server_names_holds_where_it_fits(tmp_path: Path, site: Site) -> None:
    words = "Příliš žluťoučký kůň."
    for path, kind, before in [
        ("/a", "text/html; charset=iso-8859-2", ""),
        ("/b.txt", 'text/plain; charset="ISO-8859-2"', ""),
        ("/c", "text/html; charset=utf-8", "<meta charset=iso-8859-2>"),
    ]:
        site.pages[path] = (kind, f"{before}{words} {path}".encode("iso-8859-2"))
    site.sitemap("/s.xml", "/a", "/b.txt", "/c")
    place = small_place(tmp_path)
    run(place, f"{site.url}/s.xml")
    assert texts(place) == {f"{site.url}{path}": f"{words} {path}" for path in ("/a", "/b.txt", "/c")}


def test_a_page_alone_and_one_that_is_not_there(tmp_path: Path, site: Site) -> None:
    site.page("/a", "The lamp of page a.")
    place = small_place(tmp_path)
    done, problems = run(place, f"{site.url}/a#part", f"{site.url}/none", status=1)
    assert problems == [f"{site.url}/none"] and done["documents"] == 1
    del site.pages["/a"]
    assert "holds no file" in place.command("precompute", f"{site.url}/a", "--prune", "--allow-private", status=2)[1]
    assert run(place, f"{site.url}/a", "--prune", "--empty")[0]["removed"] == 1


def test_pages_are_bounded(tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("/a", "/b", "/c"):
        site.page(path, f"The lamp of {path}.")
    site.sitemap("/s.xml", "/a", "/b", "/c", "http://other.example/d")
    monkeypatch.setattr(web_pages, "MAX_PAGES", 2)
    done, problems = run(small_place(tmp_path), f"{site.url}/s.xml", status=1)
    assert (done["documents"], problems) == (2, [f"{site.url}/s.xml"])
    client = WebClient(allow_private=True)
    site.pages["/large"] = (HTML, b"x" * 3_000_000)
    with pytest.raises(Unfetched, match="more than 1 MiB"):
        client.get(f"{site.url}/large", 1 << 20)
    site.pages["/loop"] = "/loop"
    with pytest.raises(Unfetched, match="redirects more than 5 times"):
        client.get(f"{site.url}/loop")
    monkeypatch.setattr(web_client, "_WHOLE_S", -1.0)
    with pytest.raises(Unfetched, match="took more than"):
        client.get(f"{site.url}/a")
    client.close()


PRIVATE = (
    "127.0.0.1 10.1.2.3 169.254.169.254 192.168.0.1 100.64.0.1 0.0.0.0 224.0.0.1 ::1 fe80::1 fc00::1 "
    "::ffff:10.0.0.1 64:ff9b::a00:1 2002:a00:1::"
)


@pytest.mark.parametrize("address", PRIVATE.split())
def test_no_private_address_is_connected_to(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 80)) for each in ("1.1.1.1", address)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("it was connected to"))
    client = WebClient()
    with pytest.raises(Unfetched, match="no public address: add --allow-private"):
        client.get("http://inside.example/")
    client.close()


def test_a_redirect_to_a_private_address_is_not_followed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.pages["/a"] = "http://inside.example/"
    known = socket.getaddrinfo

    def look(host: str, port: int, *rest: int, **more: int) -> object:
        return known("127.0.0.1" if host == "127.0.0.1" else "10.0.0.1", port, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", look)
    loopback = ipaddress.ip_address("127.0.0.1")
    monkeypatch.setattr(web_client, "_is_public", lambda address: address == loopback)
    client = WebClient()
    with pytest.raises(Unfetched, match=r"inside\.example is at 10\.0\.0\.1"):
        client.get(f"{site.url}/a")
    client.close()


def test_a_private_page_is_a_problem_that_names_the_option(tmp_path: Path, site: Site) -> None:
    site.page("/a", "The lamp.")
    told, _ = small_place(tmp_path).command("precompute", f"{site.url}/a", "--json", status=1)
    assert "--allow-private" in json.loads(told.splitlines()[-1])["problems"][0]["reason"]
    assert site.asked == []
