"""What clients see as the model's name, and what does not depend on it."""

import json
from pathlib import Path

import pytest

from service.builtin import CHECKPOINT
from tests.service.passages import PASSAGES, QUESTIONS
from tests.service.serving import Inside, Json, ask, good, in_process, put_in, sampled, settings_in


@pytest.mark.parametrize(
    ("model", "shown"),
    [
        ("builtin", "builtin"),
        ("org/model", "org/model"),
        ("{here}", "mine"),
        ("{here}/", "mine"),
    ],
)
def test_a_folder_is_shown_by_its_own_name(model: str, shown: str, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    settings = settings_in(tmp_path, model=model.format(here=tmp_path / "mine"))
    assert settings.shown_model == shown
    assert settings.model_copy(update={"model_name": "acme/assistant"}).shown_model == "acme/assistant"


def test_clients_see_the_name_and_no_path_and_caches_do_not_know_it(tmp_path: Path) -> None:
    folder = tmp_path / "secret-place" / "mine"
    folder.parent.mkdir()
    folder.symlink_to(CHECKPOINT)
    settings = settings_in(tmp_path / "kvweave", model=str(folder))
    with in_process(settings) as service, service.client() as client:
        put_in(client, [{"id": "letter", "text": PASSAGES[1].text}])
        first = ask(client, QUESTIONS[0], blend={"policy": "reuse"})
        told = everything(service, "mine")
        assert service.core.settings.model == str(folder)
    with (
        in_process(settings.model_copy(update={"model_name": "acme/assistant"})) as service,
        service.client() as client,
    ):
        again = ask(client, QUESTIONS[0], blend={"policy": "reuse"})
        renamed = everything(service, "acme/assistant")
        assert client.post("/v1/chat/completions", json=chat("mine")).status_code == 404
    assert first["usage"]["reused_tokens"] > 0 and again["usage"] == first["usage"]
    assert [each["source"] for each in again["report"]["chunks"]] == ["lmdb"]
    assert (
        "secret-place" not in told + renamed and "mine" not in renamed and told.count("mine") == renamed.count("acme")
    )


def chat(model: str) -> Json:
    return {"model": model, "messages": [{"role": "user", "content": "Who?"}], "max_tokens": 2, "temperature": 0}


def everything(service: Inside, name: str) -> str:
    """All that a client is told where a model may be named."""
    with service.client() as client:
        [listed] = good(client.get("/v1/models"))["data"]
        assert listed == good(client.get(f"/v1/models/{name}")) == good(client.get("/v1/models/default"))
        answers = [good(client.post("/v1/chat/completions", json=chat(each))) for each in (name, "default")]
        assert {each["model"] for each in answers} == {listed["id"]} == {name}
        streamed = client.post("/v1/chat/completions", json={**chat(name), "stream": True})
        missing = client.post("/v1/chat/completions", json=chat("gpt-x"))
        assert missing.status_code == 404 and f"this service has '{name}'" in missing.text
        others = [client.get(f"/v1/{each}").text for each in ("stats", "collections", "documents")]
        fingerprints = {each["system_fingerprint"] for each in answers}
        assert len(fingerprints) == 1
        return "".join(
            [json.dumps(listed), *map(json.dumps, answers), streamed.text, missing.text, *others, str(sampled(client))]
        )
