"""The built-in model says where it cannot know what it is asked about, and nothing where it can."""

import logging
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from service.access.principal import Role
from service.answers.foreign_documents import SENTENCE, ForeignDocuments
from service.app.composition import compose_served
from service.builtin import CHECKPOINT
from service.lab.demo.demo_answers import CORPUS, EXAMPLES
from service.lab.questions.suites import Draw, multihop
from service.model.served_model import ServedModel
from service.settings import Settings
from tests.service.serving import Inside, ask, good, in_process, put_in, settings_in
from tests.service.test_precompute_plans import Near

ROOT = Path(__file__).parent.parent.parent
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]
MODULES = [Path(sysconfig.get_path("stdlib")) / f"{name}.py" for name in ("argparse", "json/decoder", "this", "turtle")]
GERMAN = "Kündigungen sind schriftlich bis zum dritten Werktag eines Monats einzureichen."
JAPANESE = "東京は日本の首都であり、世界で最も人口の多い都市の一つです。" * 2


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedModel]:
    served = compose_served(Settings(data=tmp_path_factory.mktemp("data"), store="mem://"))
    yield served
    served.engine.close()


def passages(text: str) -> list[str]:
    return [text[start : start + 1000] for start in range(0, len(text), 1000) if text[start : start + 100].strip()]


@pytest.mark.parametrize("text", [GERMAN, JAPANESE, *(page.read_text("utf-8") for page in [*PAGES, *MODULES])])
def test_manuals_code_and_other_languages_are_foreign_by_the_passage(model: ServedModel, text: str) -> None:
    foreign = ForeignDocuments(model)
    assert [part for part in passages(text) if len(part) >= 40 and foreign.notes([part]) != (SENTENCE,)] == []


def test_no_passage_of_the_world_is_foreign(model: ServedModel) -> None:
    foreign = ForeignDocuments(model)
    worlds = [case for level in (1, 2, 3) for case in multihop(seed=31, size=200, drawn=Draw(level))]
    texts = {each.text for case in worlds for each in case.passages}
    texts |= {each.read_text("utf-8") for each in CORPUS.iterdir()}
    assert len(texts) > 1000
    assert [text for text in texts if foreign.notes([text])] == []
    assert foreign.notes([]) == foreign.notes(["Mira"]) == ()


def test_a_service_says_it_in_every_report_and_once_in_its_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logged = [SENTENCE]
    with caplog.at_level(logging.WARNING), in_process(settings_in(tmp_path)) as served, served.client() as client:
        put_in(client, [{"id": each.name, "text": each.read_text("utf-8")} for each in CORPUS.iterdir()])
        assert [ask(client, each.question)["report"]["notes"] for each in EXAMPLES] == [[]] * len(EXAMPLES)
        assert SENTENCE not in caplog.messages
        put_in(client, [{"id": "page", "text": GERMAN}])
        for _ in range(2):
            assert ask(client, "Bis wann sind Kündigungen einzureichen?", top_k=2)["report"]["notes"] == [SENTENCE]
        loose = {"question": "Why?", "top_k": 0, "documents": [{"text": GERMAN}]}
        assert good(client.post("/v1/query", json=loose))["report"]["notes"] == [SENTENCE]
        assert [each for each in caplog.messages if each == SENTENCE] == logged
        for each in CORPUS.iterdir():
            good(client.delete(f"/v1/documents/{each.name}"))
    caplog.clear()
    with caplog.at_level(logging.WARNING), in_process(settings_in(tmp_path)):
        assert [each for each in caplog.messages if each == SENTENCE] == logged


def test_another_model_says_nothing_of_it(tmp_path: Path) -> None:
    settings = settings_in(tmp_path).model_copy(update={"model": str(CHECKPOINT)})
    with in_process(settings) as served, served.client() as client:
        put_in(client, [{"id": "page", "text": GERMAN}])
        assert ask(client, "Was ist einzureichen?")["report"]["notes"] == []


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    with in_process(settings_in(tmp_path_factory.mktemp("served"))) as inside:
        yield inside


def test_a_service_without_documents_says_so_instead_of_an_answer(served: Inside) -> None:
    with served.client(served.core.control.create_key("new", Role.ADMIN)[1]) as client:
        refused = client.post("/v1/query", json={"question": "Where?"})
        assert (refused.status_code, "kvweave precompute" in refused.json()["detail"]) == (404, True)
        chat = {"model": "default", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
        assert client.post("/v1/chat/completions", json=chat).status_code == 200  # a chat needs none
        put_in(client, [{"id": "page", "text": GERMAN}])
        assert ask(client, "Zebra?")["answer"] is not None


def test_the_window_of_the_built_in_model_is_told_apart_from_chunks(served: Inside) -> None:
    with served.client() as client:
        put_in(client, [{"id": "page", "text": GERMAN}])
        refused: httpx.Response = client.post("/v1/query", json={"question": "Why not? " * 1600})
        assert (refused.status_code, "leave out chunks" in refused.text) == (422, False)
        assert "shorten the question" in refused.text


def test_what_no_window_holds_is_refused_before_it_is_read_as_a_whole(
    served: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, read = served.core.model.prompt_builder.tokenizer, list[int]()
    encode = tokenizer.encode_text

    def encoded(text: str) -> list[int]:
        read.append(len(text))
        return encode(text)

    monkeypatch.setattr(tokenizer, "encode_text", encoded)
    many = "word " * 2_000_000
    turns = [{"role": "user", "content": many}, {"role": "user", "content": "What?"}]
    with served.client() as client:
        chat = client.post("/v1/chat/completions", json={"model": "default", "messages": turns})
        asked = client.post("/v1/query", json={"question": "What?", "documents": [{"text": many}]})
    assert (chat.status_code, chat.json()["error"]["code"]) == (400, "context_length_exceeded"), chat.text
    assert asked.status_code == 422 and max(read, default=0) < 1 << 15, asked.text


def test_a_corpus_run_says_it_once(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    for text, times in ((EXAMPLES[0].question * 3, 0), (GERMAN, 1), (GERMAN, 1)):
        (docs / f"{len([*docs.iterdir()])}.md").write_text(text, encoding="utf-8")
        _, said = Near(tmp_path, model="builtin").command("precompute", str(docs))
        assert said.count(SENTENCE) == times
