"""`kvweave precompute` and where a corpus lies: which file is which, `--prune`, pages, sitemaps and object storage."""

import gzip
import ipaddress
import json
import os
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import obstore
import pytest

from service.documents import web_client, web_pages
from service.documents.web_client import Unfetched, WebClient
from tests.servers.s3 import moto_server
from tests.service.test_precompute_plans import Near, small_place

HTML = "text/html; charset=utf-8"


def written(path: Path, text: str) -> Path:
    """A file of that text, all of one time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    os.utime(path, ns=(10**18, 10**18))
    return path


def texts(place: Near) -> dict[str, str]:
    return {document: "".join(chunks) for document, chunks in place.holds()[1].items()}


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    for name in ("a.md", "b.md", "deep/c.txt"):
        written(folder / name, f"A lamp in {name}.")
    return folder


def test_prune_deletes_only_within_what_its_arguments_name(tmp_path: Path, docs: Path) -> None:
    place, notes = small_place(tmp_path), written(tmp_path / "notes/d.md", "A note.").parent
    place.run(str(docs), str(notes))
    for arguments in ([f"{docs}/*.md"], [f"{docs}/**/*.txt"], [str(notes)], [str(docs / "a.md")], [str(docs / "deep")]):
        assert place.run(*arguments, "--prune")["removed"] == 0
    (docs / "a.md").unlink()
    (docs / "deep/c.txt").rename(docs / "deep/e.txt")
    assert place.run(str(notes), f"{docs}/*/*.md", str(docs / "b.md"), "--prune", status=2)
    assert place.run(str(notes), str(docs / "b.md"), "--prune")["removed"] == 0
    assert place.run(f"{docs}/*.md", "--prune")["removed"] == 1
    assert place.run(str(docs), "--prune")["removed"] == 1
    assert texts(place).keys() == {"docs/b.md", "docs/deep/e.txt", "notes/d.md"}


def test_what_is_skipped_in_a_folder_is_named(tmp_path: Path, docs: Path) -> None:
    skipped = [
        written(docs / name, "x") for name in (".hidden.md", "deep/.git/x.md", "1.png", "2.png", "3.png", "4.png")
    ]
    skipped[1] = skipped[1].parent
    told, said = small_place(tmp_path).command("precompute", str(docs), "--dry-run", "--json")
    event = json.loads(told.splitlines()[0])
    assert event["event"] == "skipped" and sorted(event["paths"]) == sorted(map(str, skipped))
    _, said = small_place(tmp_path).command("precompute", str(docs), "--dry-run")
    assert f"skipped, hidden: {skipped[0]}, {skipped[1]}\n" in said
    assert f"skipped, the suffix '.png' is unknown: {skipped[2]}, {skipped[3]}, {skipped[4]} and 1 more\n" in said


def test_a_file_that_is_none_of_its_format_is_named_and_hinders_no_other(tmp_path: Path, docs: Path) -> None:
    written(docs / "staff.csv", "Name,Born\nAda,1815\n")
    written(docs / "broken.docx", "no zip")
    written(docs / "node_modules/x/readme.md", "A tool's.")
    place = small_place(tmp_path)
    told, _ = place.command("precompute", str(docs), "--json", status=1)
    done = json.loads(told.splitlines()[-1])
    assert [(each["place"], "save it anew" in each["reason"]) for each in done["problems"]] == [
        (str(docs / "broken.docx"), True)
    ]
    assert texts(place)["docs/staff.csv"] == "- Name: Ada; Born: 1815"
    assert len(texts(place)) == 4


def test_a_run_says_first_what_a_megabyte_costs(tmp_path: Path, docs: Path) -> None:
    written(docs / "a.md", "A lamp stands in the hall, and two more are kept below the stairs. " * 20)
    place = small_place(tmp_path)
    first, *_, last = [json.loads(line) for line in place.command("precompute", str(docs), "--json")[0].splitlines()]
    assert first["event"] == "cost" and 100_000 < first["tokens"] < 1_000_000
    assert first["nbytes"] / first["tokens"] == pytest.approx(last["nbytes"] / last["tokens"], rel=0.5)
    again = place.command("precompute", str(docs), "--json")[0]
    assert '"cost"' not in again, "nothing is new"


def test_a_folder_without_files_is_emptied_on_demand_alone(tmp_path: Path, docs: Path) -> None:
    place, notes = small_place(tmp_path), written(tmp_path / "notes/d.md", "A note.").parent
    place.run(str(docs), str(notes))
    docs.rename(tmp_path / "unmounted")
    docs.mkdir()
    for more in ([], ["--dry-run"]):
        told = place.run(str(docs), str(notes), "--prune", *more, status=2)["error"]
        assert "docs holds no file, where 3 were" in told and "--empty" in told
    assert len(texts(place)) == 4
    assert place.run(str(docs), str(notes), "--prune", "--empty")["removed"] == 3
    assert texts(place).keys() == {"notes/d.md"}


def test_what_is_pruned_is_listed_first_and_by_a_dry_run_too(tmp_path: Path, docs: Path) -> None:
    place = small_place(tmp_path)
    place.run(str(docs))
    (docs / "a.md").unlink()
    for more in (["--dry-run"], []):
        assert "docs/a.md" in texts(place)
        told, _ = place.command("precompute", str(docs), "--prune", *more)
        assert told.startswith("gone, to be deleted: docs/a.md, 1 document\n")
    assert "docs/a.md" not in texts(place)
    (docs / "b.md").unlink()
    told, _ = place.command("precompute", str(docs), "--prune", "--json")
    assert json.loads(told.splitlines()[0]) == {"event": "prune", "gone": ["docs/b.md"]}


def test_folders_of_one_name_are_told_apart_and_keep_their_ids_where_they_move(tmp_path: Path) -> None:
    place, old, new = small_place(tmp_path), tmp_path / "old", tmp_path / "new"
    for folder, text in (("a", "A lamp."), ("b", "A coin.")):
        written(old / folder / "docs/x.md", text)
        written(old / folder / "docs/y.md", f"{text} {text}")
        place.run(str(old / folder / "docs"))
    found = {
        "docs/x.md": "A lamp.",
        "docs/y.md": "A lamp. A lamp.",
        "b/docs/x.md": "A coin.",
        "b/docs/y.md": "A coin. A coin.",
    }
    assert texts(place) == found
    assert place.run(str(old / "b/docs"), str(old / "a/docs"))["unchanged"] == 4
    old.rename(new)
    written(new / "b/docs/x.md", "A king.")
    (new / "b/docs/y.md").rename(new / "b/docs/z.md")
    done = place.run(str(new / "b/docs"), "--prune")
    assert (done["documents"], done["removed"]) == (2, 1)
    found["b/docs/x.md"], found["b/docs/z.md"] = "A king.", found.pop("b/docs/y.md")
    assert place.run(str(new / "a/docs"), "--prune")["removed"] == 0
    assert texts(place) == found and not place.captured[1:]
    assert place.run(str(new / "b/docs"), str(new / "a/docs"))["unchanged"] == 4


def test_another_folder_takes_no_place_of_one_that_is_gone(tmp_path: Path) -> None:
    place = small_place(tmp_path)
    for folder in ("a", "b"):
        written(tmp_path / folder / "docs/x.md", f"A lamp of {folder * 9}.")
    place.run(str(tmp_path / "a/docs"))
    (tmp_path / "a").rename(tmp_path / "elsewhere")
    written(tmp_path / "b/docs/x.md", "Another lamp.")
    assert place.run(str(tmp_path / "b/docs"), "--prune")["removed"] == 0
    assert texts(place).keys() == {"docs/x.md", "b/docs/x.md"}


def test_a_pattern_inside_a_folder_makes_no_twins(tmp_path: Path, docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = small_place(tmp_path)
    monkeypatch.chdir(docs)
    place.run(".", "*.md")
    written(docs / "new.md", "Another lamp.")
    for arguments in (["*.md"], ["deep/*"], ["a.md"], ["deep"], ["**/*.md"]):
        place.run(*arguments, "--prune")
    monkeypatch.chdir("/")
    assert place.run(str(docs))["unchanged"] == 4
    assert texts(place).keys() == {"docs/a.md", "docs/b.md", "docs/new.md", "docs/deep/c.txt"}


def test_files_of_an_older_catalog_keep_their_ids(tmp_path: Path, docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, path = small_place(tmp_path), tmp_path / "data/tenants/default/catalog.sqlite"
    place.run(str(docs))
    before = texts(place)

    def aged() -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE sources SET base = ''")

    aged()
    written(docs / "a.md", "A king in a.md.")
    monkeypatch.chdir(docs)
    assert place.run("*.md")["documents"] == 1
    aged()
    (docs / "b.md").unlink()
    done = place.run(str(docs), "--prune")
    assert (done["documents"], done["removed"], done["stored"]) == (0, 1, 0)
    assert place.run(str(docs))["unchanged"] == 2
    assert texts(place) == {"docs/a.md": "A king in a.md.", "docs/deep/c.txt": before["docs/deep/c.txt"]}


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


def test_a_folder_in_object_storage_is_read_as_one_on_disk_is(tmp_path: Path) -> None:
    with moto_server() as server:
        bucket = server.connect("docs")
        for name, content in {"a.md": b"The lamp a.", "deep/b.csv": b"Name,Born\nAda,1815\n", "c.png": b"x"}.items():
            obstore.put(bucket, name, content)
        obstore.put(bucket, ".git/x.md", b"hidden")
        place, url, base = small_place(tmp_path), server.url("docs"), f"s3://{server.bucket}/docs"
        done = place.run(url)
        assert texts(place) == {f"{base}/a.md": "The lamp a.", f"{base}/deep/b.csv": "- Name: Ada; Born: 1815"}
        assert "secret" not in json.dumps(done)
        assert place.run(url)["unchanged"] == 2
        obstore.delete(bucket, ["a.md"])
        assert place.run(url, "--prune")["removed"] == 1
        assert texts(place).keys() == {f"{base}/deep/b.csv"}
