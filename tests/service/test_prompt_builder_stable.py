"""Chunks stay usable whatever stands around them: another system prompt, another date in it, another day, a restart."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, tzinfo
from pathlib import Path

import httpx
import pytest
from transformers.utils import chat_template_utils

from service.app.composition import usual_system
from service.lab.questions.cases import Case
from service.model.prompt_builder import SYSTEM, PromptBuilder
from service.settings import Settings
from tests.service.checkpoints import DATED, checkpoint
from tests.service.demo_served import DOCUMENTS
from tests.service.overhearing import Overheard
from tests.service.passages import PASSAGES, QUESTIONS
from tests.service.serving import Inside, Json, Service, ask, good, in_process, put_in, sampled, settings_in

SYSTEMS = (None, "", "Be brief.", *(f"Today is the {day}. Answer from the documents. " * 3 for day in ("1st", "2nd")))
DAY_S = 86_400.0


@contextmanager
def moved(days: int) -> Iterator[None]:
    """All clocks that tell the date are so many days ahead, in chat templates too."""
    ahead, now = days * DAY_S, time.time

    class Ahead(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> "Ahead":
            return super().now(tz) + timedelta(days=days)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: now() + ahead)
        patch.setattr(chat_template_utils, "datetime", Ahead)
        yield


@pytest.fixture(scope="module", params=["builtin", "dated"])
def settings(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Of a service that holds the documents already, by way of a start before."""
    folder = tmp_path_factory.mktemp(request.param)
    model = "builtin" if request.param == "builtin" else checkpoint(folder / "model", chat_template=DATED)
    settings = settings_in(folder, model=model, store=f"tiered:mem://|lmdb://{folder}/store")
    with in_process(settings) as inside, inside.client() as client:
        put_in(client, DOCUMENTS[:2])
        rules = {"system": "Today is the 30th."}
        assert client.put("/v1/collections/ledgers", json=rules).status_code == 201
        put_in(client, DOCUMENTS[2:], collection="ledgers")
    return settings


@pytest.fixture(scope="module", params=[0, 1])
def inside(request: pytest.FixtureRequest, settings: Settings) -> Iterator[Inside]:
    """Started anew, so many days later."""
    with moved(request.param), in_process(settings) as inside:
        yield inside


@pytest.fixture(scope="module")
def client(inside: Inside) -> Iterator[httpx.Client]:
    with inside.client() as client:
        yield client


def check_hits(client: httpx.Client, asked: Callable[..., Json], count: int, **more: object) -> None:
    """All chunks come from a tier: of none it is said that it was computed, and none is computed behind it."""
    for system in SYSTEMS:
        report = asked(client, system, **more)
        assert len(report["chunks"]) == count
        assert {each["source"] for each in report["chunks"]} <= {"ram", "lmdb"}, report
        assert {each["miss_reason"] for each in report["chunks"]} == {None}
    figures = sampled(client)
    assert figures.get('kvweave_captured_chunks_total{tenant="default"}', 0) == 0 == figures["kvweave_fills_waiting"]


def queried(client: httpx.Client, system: str | None, **more: object) -> Json:
    return ask(client, QUESTIONS[0], system=system, sampling={"max_tokens": 2}, **more)["report"]


def chatted(client: httpx.Client, system: str | None, **more: object) -> Json:
    """With the passages in the text of the chat, where they are recognised."""
    pasted = "\n\n".join(each.text for each in PASSAGES)
    turns = [{"role": "user", "content": f"{pasted}\n\n{QUESTIONS[0]}"}]
    turns = turns if system is None else [{"role": "system", "content": system}, *turns]
    model = good(client.get("/v1/models"))["data"][0]["id"]
    body = {"model": model, "messages": turns, "max_tokens": 2, "temperature": 0, **more}
    return good(client.post("/v1/chat/completions", json=body))["kvweave"]["report"]


def chunk_ids(client: httpx.Client, *documents: str) -> list[str]:
    pages = [good(client.get(f"/v1/documents/{each}/chunks"))["chunks"] for each in documents]
    return [chunk["chunk_id"] for page in pages for chunk in page]


def test_no_chunk_is_missed_whatever_the_system_prompt_and_the_day(client: httpx.Client) -> None:
    check_hits(client, queried, 4, chunk_ids=chunk_ids(client, "d0", "d1", "d2", "d3"))
    check_hits(client, chatted, 4)


def test_new_rules_of_a_collection_leave_its_chunks_usable(client: httpx.Client) -> None:
    rules = {"system": f"Now it is {datetime.now().isoformat()}."}
    assert good(client.put("/v1/collections/ledgers", json=rules))["system"] == rules["system"]
    check_hits(client, queried, 2, chunk_ids=chunk_ids(client, "d2", "d3"))


def test_a_question_is_asked_in_the_words_that_eval_measures(inside: Inside, client: httpx.Client) -> None:
    overheard, tokenizer = Overheard(inside.core), inside.core.model.prompt_builder.tokenizer
    every = chunk_ids(client, "d0", "d1", "d2", "d3")
    for question in QUESTIONS:
        good(client.post("/v1/query", json={"question": question, "chunk_ids": every, "sampling": {"max_tokens": 1}}))
        case = Case(question, PASSAGES, system=usual_system(inside.core.settings) or SYSTEM)
        asked = PromptBuilder(tokenizer).lay(case.turns)
        assert overheard.ids() == [*asked.prompt({}).ids]


def test_a_template_with_the_date_says_another_one_on_another_day(inside: Inside) -> None:
    """The test of the tests above: what stands before the passages does change."""
    model = inside.core.model
    before = model.prefix({})
    with moved(7):
        assert (model.prefix({}) == before) == (inside.core.settings.model == "builtin")


@pytest.mark.long
def test_a_service_in_another_time_zone_misses_no_chunk(tmp_path: Path) -> None:
    """26 hours apart it is never the same day, for a process of its own neither."""
    service = Service(tmp_path, model=checkpoint(tmp_path / "model", chat_template=DATED), environment={"TZ": "A+12"})
    service.start()
    with service.client() as client:
        put_in(client, DOCUMENTS)
    service.terminate()
    later = Service(tmp_path, model=str(tmp_path / "model"), environment={"TZ": "B-14"})
    with later, later.client() as client:
        check_hits(client, chatted, 4)
    assert "another fingerprint" not in later.text()
