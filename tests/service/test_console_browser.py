"""The console page in a real browser, on a telephone and on a desk: what a user does is done, and nothing overlaps."""

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.conftest import WITHOUT_BROWSER
from tests.servers.browser import Browser, browser
from tests.service.faulty import FaultyStore, Gate, around
from tests.service.passages import PASSAGES, QUESTIONS
from tests.service.serving import Inside, in_process, settings_in, wait_for

WIDTHS = (390, 1600)
# All texts and fields that can be seen, as far as no frame cuts them off; which two lie above each other, and what is
# beside the page.
OVERLAPS = """
const seen = [];
for (const element of document.body.querySelectorAll("*")) {
  const isField = element.matches("input, select, textarea, button, progress, .track");
  const isInside = element.parentElement.closest("select, button, .track, .spoken");
  if (isInside || element.matches(".spoken") || !element.checkVisibility({opacityProperty: true})) continue;
  const texts = [...element.childNodes].filter(({nodeType}) => nodeType === Node.TEXT_NODE);
  for (const node of isField ? [element] : texts) {
    const range = document.createRange();
    range.selectNode(node);
    for (let {left, top, right, bottom} of range.getClientRects()) {
      for (let frame = isField ? element.parentElement : element; frame; frame = frame.parentElement) {
        const {overflow, clipPath} = getComputedStyle(frame);
        if (clipPath !== "none") right = left; // for readers aloud
        if (overflow === "visible") continue;
        const edge = frame.getBoundingClientRect();
        [left, top] = [Math.max(left, edge.left), Math.max(top, edge.top)];
        [right, bottom] = [Math.min(right, edge.right), Math.min(bottom, edge.bottom)];
      }
      const name = `${element.localName}#${element.id} ${node.textContent.trim().slice(0, 40)}`;
      if (right - left > 1 && bottom - top > 1) seen.push({element, name, left, top, right, bottom});
    }
  }
}
const across = (one, other) => Math.min(one.right, other.right) - Math.max(one.left, other.left);
const down = (one, other) => Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top);
const above = seen.flatMap((one, number) => seen.slice(number + 1)
  .filter((other) => one.element !== other.element && across(one, other) > 2 && down(one, other) > 4)
  .map((other) => `${one.name} | ${other.name}`));
const beside = seen.filter(({left, right}) => left < -1 || right > innerWidth + 1);
return [seen.length, [...above, ...beside.map(({name}) => `beside the page: ${name}`)]];
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    folder = tmp_path_factory.mktemp("browsed")
    document = {"id": "sample", "title": "Register 12", "chunks": [{"text": each.text} for each in PASSAGES]}
    with in_process(settings_in(folder), wrap=around, documents=[document]) as inside:
        yield inside


@pytest.fixture(scope="module")
def program() -> Iterator[Browser]:
    with browser() as found:
        if found is None:
            pytest.skip(WITHOUT_BROWSER)
        yield found


@pytest.fixture
def page(program: Browser, service: Inside) -> Browser:
    """The console in a window, with the key."""
    program.open(f"{service.base_url}/healthz")  # of the same origin
    program.run("sessionStorage.setItem('kvweave.key', arguments[0])", service.key)
    program.open(f"{service.base_url}/")
    seen(program, "#connection[data-kind=ready]")
    return program


def seen(page: Browser, selector: str, *, having: str = "") -> None:
    """Waits until there is such an element, with these words."""
    script = "return [...document.querySelectorAll(arguments[0])].some((each) => each.checkVisibility()"
    script += " && each.textContent.includes(arguments[1]))"
    wait_for(lambda: page.run(script, selector, having), f"the page shows {selector} with {having!r}")


def check_boxes(page: Browser) -> None:
    """Nothing lies above anything else, and nothing beside the page, at each width."""
    for width in WIDTHS:
        page.size(width)
        count, overlapping = page.run(OVERLAPS)
        assert count > 10, "there is something to compare"
        assert overlapping == [], f"at {width} pixels"


def text_of(page: Browser, selector: str) -> list[str]:
    return page.run("return [...document.querySelectorAll(arguments[0])].map((each) => each.textContent)", selector)


def test_an_answer_stands_with_its_sources_and_beside_full_prefill(page: Browser) -> None:
    page.size(1600)
    page.type_into("#question", f"{QUESTIONS[0]}\n")
    seen(page, ".answer .state", having="done")
    assert text_of(page, ".answer .text") == ["badger"]
    assert text_of(page, ".sources .preview mark") == ["Halio", "Halio", "keeps"]
    assert any("relevance of the best" in each for each in text_of(page, ".sources h3"))
    check_boxes(page)
    page.click("#ask-compare")
    seen(page, "#verdict", having="Both answers are equal")
    assert text_of(page, ".answer h2")[1:] == ["Full prefill"]
    page.run("document.querySelectorAll('.sources details').forEach((each) => { each.open = true })")
    check_boxes(page)


def test_markdown_of_a_model_is_drawn_and_nothing_of_it_runs(page: Browser) -> None:
    text = (
        "# Steps\n\n1. **one**\n2. `two`\n   - in [it](https://here.example/a) [no](javascript:alert(1))\n\n"
        "<img src=x onerror=alert(1)>\n![x](https://there.example/x.png)\n\n|a|b|\n|-|-|\n|1|2|\n\n```\n<b>\n"
    )
    drawn = page.run(
        "return import('./console/markdown.js').then(({drawMarkdown}) => { const place = document.createElement('div');"
        " for (let end = 1; end <= arguments[0].length; end += 1) drawMarkdown(place, arguments[0].slice(0, end));"
        " return [place.innerHTML, [...place.querySelectorAll('*')].map((each) => each.localName).join(' ')]; })",
        text,
    )
    tags = "h3 ol li strong li code ul li a p a table thead tr th th tbody tr td td pre code"
    assert drawn[1] == tags
    assert "&lt;img src=x" in drawn[0] and 'href="https://here.example/a"' in drawn[0]
    assert "[no](javascript:alert(1))" in drawn[0]


def test_a_preview_shows_where_the_words_of_the_question_stand_and_under_which_heading(page: Browser) -> None:
    text = (
        f"# Boats\n\n{'They sail. ' * 40}\n\n## Docks\n\nIn Kiel the ink of R2 is sold at docks, {'it is said ' * 30}"
    )
    shown = page.run(
        "return import('./console/passages.js').then(({finder, headingOf, marked, previewOf}) => {"
        " const found = finder('Where do I get R2 at the dock?'); const preview = previewOf(arguments[0], found);"
        " const marks = marked(preview, found).filter((part) => part.localName === 'mark');"
        " return [headingOf(arguments[0], 'Boats', found), preview.length, marks.map((mark) => mark.textContent)]; })",
        text,
    )
    assert shown == ["Docks", pytest.approx(200, abs=20), ["R2", "docks"]]


def test_the_fate_of_each_file_is_told_by_its_name(page: Browser, service: Inside, tmp_path: Path) -> None:
    contents = {"good.md": "# Boats\n\nThey sail.", "torn.docx": "no archive", "odd.xyz": "x", "empty.txt": ""}
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
    page.open(f"{service.base_url}/#documents")
    page.type_into("#files", "\n".join(str(tmp_path / name) for name in contents))
    seen(page, "#jobs > li:first-child .state", having="some of it failed")
    seen(page, "#jobs > li:first-child details li", having="1 chunk in default")
    told = " / ".join(text_of(page, "#jobs > li:first-child :is(.problem, details li)"))
    assert "'odd.xyz' is of no known kind" in told and "'empty.txt' is empty" in told
    assert "torn.docx refused: it is damaged" in told and "good.md 1 chunk in default" in told
    seen(page, "#list-rows", having="good.md")
    check_boxes(page)
    page.type_into("#files", "\n".join(str(tmp_path / name) for name in ("odd.xyz", "empty.txt")))
    seen(page, "#jobs > li:first-child .state", having="not taken")
    assert [each.split()[0] for each in text_of(page, "#jobs > li:first-child .problem")] == [
        "'odd.xyz'",
        "'empty.txt'",
    ]


def test_a_running_job_is_there_after_a_reload_and_so_is_another_clients(page: Browser, service: Inside) -> None:
    store, gate = cast(FaultyStore, service.core.store), Gate()
    page.open(f"{service.base_url}/#documents")
    with store.failing(lambda name, what: gate.pass_through() if name == "put" else None), service.client() as client:
        page.run("document.querySelector('#put-in details').open = true")
        page.type_into("#paste-id", "mine")
        page.type_into("#paste-text", "Cranes stand by the water.")
        page.click("#paste button")
        seen(page, "#jobs li .name", having="mine")
        assert client.post("/v1/documents", json={"id": "theirs", "text": "Gulls fly above it."}).status_code == 202
        page.open(f"{service.base_url}/?again#documents")
        for name in ("mine", "theirs"):
            seen(page, "#jobs li:has(progress:not([hidden]), button:not([hidden])) .name", having=name)
        check_boxes(page)
        gate.opened.set()
        for name in ("mine", "theirs"):
            seen(page, "#jobs li:not(:has(button:not([hidden])))", having=name)
            seen(page, "#list-rows", having=name)


def test_figures_and_a_document_with_its_chunks_are_shown(page: Browser, service: Inside) -> None:
    page.open(f"{service.base_url}/?figures#stats")
    seen(page, "#stats-body", having="The store, tier by tier")
    check_boxes(page)
    page.open(f"{service.base_url}/?one#documents/sample")
    seen(page, ".chunks li", having=PASSAGES[0].text)
    page.run("document.querySelectorAll('.chunks details').forEach((each) => { each.open = true })")
    check_boxes(page)


def test_a_collections_rules_for_what_is_not_found_are_shown_and_changed(page: Browser, service: Inside) -> None:
    with service.client() as client:
        before = client.put("/v1/collections/ruled", json={"chunk_tokens": 64, "floor": 0.5}).json()
        page.open(f"{service.base_url}/?ruled#documents")
        seen(page, "#list-collection", having="ruled")
        choose = "const list = arguments[0]; document.getElementById(list).value = arguments[1];"
        choose += " document.getElementById(list).dispatchEvent(new Event('change'))"
        page.run(choose, "list-collection", "ruled")
        page.run("document.getElementById('rules').open = true")
        wait_for(lambda: page.run("return document.getElementById('rules-floor').value") == "0.5", "its floor is shown")
        check_boxes(page)
        page.run("document.getElementById('rules-floor').value = ''")
        page.run(choose, "rules-on-empty", "refuse")
        page.click("#rules button")
        seen(page, "#rules-note", having="Kept.")
        assert client.get("/v1/collections/ruled").json() == {**before, "floor": None, "on_empty": "refuse"}


def test_a_link_lets_in_once_and_its_browsers_other_tabs_too(program: Browser, service: Inside) -> None:
    link = f"{service.base_url}/#once={service.core.link.issue()}"
    program.open(f"{service.base_url}/healthz")
    program.run("sessionStorage.clear()")
    program.open(link)
    seen(program, "#connection[data-kind=ready]")
    assert program.run("return location.href") == f"{service.base_url}/"
    program.open_tab(link)
    seen(program, "#connection[data-kind=ready]")
    program.run("sessionStorage.clear()")
    with browser() as other:
        assert other is not None
        other.open(link)
        seen(other, "#key-panel", having="this link was used already")
