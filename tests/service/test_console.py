"""The console page: what it is served with, that it is whole, and that it loads and asks nothing that is not there."""

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urljoin

import pytest
from fastapi.testclient import TestClient

from blend.fuse.policy import POLICIES, SELECTIVE
from service.api.console import FOLDER
from service.application import application
from service.settings import Settings
from tests.service.api.fakes import FakeCore, as_core
from tests.service.passages import PASSAGES, QUESTIONS

TEXTS = {path.name: path.read_text(encoding="utf-8") for path in sorted(FOLDER.iterdir())}
PAGE = TEXTS["index.html"]
SCRIPTS = {name: text for name, text in TEXTS.items() if name.endswith(".js")}
SVG = "http://www.w3.org/2000/svg"  # a name, not a place
VOID = ("meta", "link", "input")
FIELDS = ("input", "select", "textarea")
NAMING = ("for", "list", "aria-controls", "aria-describedby", "aria-labelledby")
UNSAFE = (
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|\"style\"|srcdoc|createContextual"
)


class Page(HTMLParser):
    """All tags with their attributes; `open` is what was not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.inline: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("script", "style"):
            self.inline.append(data)

    def values(self, attribute: str) -> list[str]:
        return [value for _, found in self.tags if (value := found.get(attribute))]


@pytest.fixture(scope="module")
def page() -> Page:
    parser = Page()
    parser.feed(PAGE)
    parser.close()
    return parser


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """Without a key, where keys are needed."""
    folder = tmp_path_factory.mktemp("console")
    core = FakeCore(folder, Settings(store="ram://", data=folder))
    with TestClient(application(lambda: as_core(core)), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="module")
def description(client: TestClient) -> dict[str, Any]:
    return client.get("/openapi.json").json()


def place(name: str) -> str:
    return "/" if name == "index.html" else f"/console/{name}"


@pytest.mark.parametrize("name", TEXTS)
def test_every_file_is_served_as_it_is_without_a_key(name: str, client: TestClient) -> None:
    answer = client.get(place(name))
    assert (answer.status_code, answer.content) == (200, (FOLDER / name).read_bytes())
    kinds = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
    assert answer.headers["content-type"].partition(";")[0] == kinds[name.rpartition(".")[2]]
    policy = dict(each.split(" ", 1) for each in answer.headers["content-security-policy"].split("; "))
    none = ("default-src", "base-uri", "frame-ancestors", "form-action", "trusted-types")
    own = ("script-src", "style-src", "connect-src")
    assert {directive: policy[directive] for directive in none} == dict.fromkeys(none, "'none'")
    assert {directive: policy[directive] for directive in own} == dict.fromkeys(own, "'self'")
    assert policy["img-src"] == "'self' data:"
    assert policy["require-trusted-types-for"] == "'script'"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-cache"
    etag = answer.headers["etag"]
    for known in (etag, f'"other", W/{etag}', "*"):
        again = client.get(place(name), headers={"if-none-match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
    assert client.get(place(name), headers={"if-none-match": '"other"'}).status_code == 200
    assert client.head(place(name)).headers["etag"] == etag


@pytest.mark.parametrize("name", ["nothing.js", "index.html", "..%2Fapi%2Fapp.py", "%2e%2e/api/app.py", ""])
def test_nothing_else_is_served(name: str, client: TestClient) -> None:
    answer = client.get(f"/console/{name}")
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")


def test_the_description_of_the_interface_has_no_page_in_it(description: dict[str, Any]) -> None:
    assert not [path for path in description["paths"] if path == "/" or "console" in path]


def test_all_that_is_loaded_is_there_and_all_that_is_there_is_loaded(page: Page) -> None:
    loaded = [
        value
        for tag, found in page.tags
        if tag in ("link", "script") and (value := found.get("href") or found.get("src"))
    ]
    imported = [f"console/{name[2:]}" for text in SCRIPTS.values() for name in re.findall(r'from "(\./[^"]+)"', text)]
    assert {*loaded, *imported} == {f"console/{name}" for name in TEXTS if name != "index.html"}


def test_all_addresses_are_relative_so_that_a_path_prefix_is_no_matter(page: Page) -> None:
    for value in [*page.values("href"), *page.values("src")]:
        assert urljoin("http://host/prefix/", value).startswith("http://host/prefix/"), value
    for name, text in TEXTS.items():
        assert not re.search(r"https?://|wss?://|[\"'(`]//?\w|@import|url\(", text.replace(SVG, "")), name


def test_nothing_in_it_would_be_blocked_and_no_text_becomes_html(page: Page) -> None:
    assert not "".join(page.inline).strip()
    assert "style" not in [tag for tag, _ in page.tags]
    attributes = {name for _, found in page.tags for name in found}
    assert not [name for name in attributes if name == "style" or name.startswith("on")]
    assert {name: found for name, text in SCRIPTS.items() if (found := re.findall(UNSAFE, text))} == {}


def test_the_page_is_whole_and_every_field_has_a_label(page: Page) -> None:
    assert page.open == []
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    named = {each for attribute in NAMING for value in page.values(attribute) for each in value.split()}
    wanted = {each for text in SCRIPTS.values() for each in re.findall(r'\bat\("([^"]+)"\)', text)}
    assert named | wanted <= {*ids}
    fields = {found["id"] for tag, found in page.tags if tag in FIELDS}
    assert fields <= {*page.values("for")}


def test_every_request_of_the_page_is_an_operation_that_there_is(description: dict[str, Any]) -> None:
    operations = {
        (method.upper(), re.sub(r"\{[^}]*\}", "{}", path).lstrip("/"))
        for path, methods in description["paths"].items()
        for method in methods
    }
    asked = {each for text in SCRIPTS.values() for each in requests_of(text)}
    assert {("POST", "v1/query"), ("GET", "v1/documents/{}/chunks"), ("GET", "v1/jobs/{}")} <= asked
    assert asked - operations == {("POST", "console/key")}  # the page's own, which no description has


def requests_of(script: str) -> Iterator[tuple[str, str]]:
    script = script.replace("${pathOf(id)}", "v1/documents/${id}").replace("pathOf(id)", "`v1/documents/${id}`")
    script = re.sub(r"\$\{[^}]*\}", "{}", script)
    for called, method, path in re.findall(
        r'(?<![.\w])(get|call|events)\((?:"([A-Z]+)", )?[`"]([a-z][^`"]+)[`"]', script
    ):
        assert called == "get" or method, path
        yield method or "GET", path.partition("?")[0]


def test_the_policies_to_choose_from_are_those_that_there_are() -> None:
    offered = re.search(r'<select id="policy".*?</select>', PAGE, re.DOTALL)
    assert offered
    assert re.findall(r'value="(\w*)"', offered[0]) == [""]
    added = re.findall(r'^  (\w+): \{ takesRatio: (true|false), hint: ".+"', SCRIPTS["policies.js"], re.MULTILINE)
    assert {name: taken == "true" for name, taken in added} == {name: name in SELECTIVE for name in POLICIES}


def test_the_sample_is_what_the_built_in_model_knows() -> None:
    texts = re.findall(r'text: ("[^"]*")', SCRIPTS["samples.js"])
    assert [json.loads(text) for text in texts] == [passage.text for passage in PASSAGES]
    assert all(json.dumps(question) in SCRIPTS["samples.js"] for question in QUESTIONS)


def test_no_file_is_longer_than_the_others_may_be() -> None:
    assert {name: lines for name, text in TEXTS.items() if (lines := text.count("\n")) > 400} == {}


def test_the_reference_loads_nothing_from_another_host(client: TestClient) -> None:
    texts = [client.get(path).text for path in ("/docs", "/docs/start.js")]
    loaded = re.findall(r"""(?:href|src|url)["']?\s*[=:]\s*["']([^"']+)["']""", "".join(texts))
    assert len(loaded) == 5
    for address in loaded:
        assert urljoin("http://here/docs", address).startswith("http://here/")
        assert client.get(urljoin("/docs", address)).status_code == 200, address
    assert client.get("/docs/redoc.standalone.js").status_code == 404


def test_the_reference_has_no_inline_script_and_may_not_be_framed(client: TestClient) -> None:
    shown, reference = client.get("/docs"), Page()
    reference.feed(shown.text)
    policy = dict(each.split(" ", 1) for each in shown.headers["content-security-policy"].split("; "))
    assert (policy["script-src"], policy["frame-ancestors"], policy["default-src"]) == ("'self'", "'none'", "'none'")
    assert [text for text in reference.inline if text.strip()] == [] and not re.search(r"\son\w+=", shown.text)
