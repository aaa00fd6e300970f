"""A model some of whose layers keep a state of all tokens, served: exact where it says so, and never handed over."""

from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from service import cli
from service.app.composition import compose_core
from service.commands.doctor import _model
from tests.service import checkpoints
from tests.service.demo_served import DOCUMENTS
from tests.service.passages import QUESTIONS
from tests.service.serving import ask, in_process, put_in, settings_in


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> str:
    return checkpoints.hybrid(tmp_path_factory.mktemp("hybrid"))


def test_it_is_exact_by_default_and_where_all_is_computed_and_blends_where_asked_to(
    hybrid: str, tmp_path: Path
) -> None:
    with in_process(settings_in(tmp_path, model=hybrid)) as served, served.client() as client:
        put_in(client, DOCUMENTS)
        texts = {
            str(blend): ask(client, QUESTIONS[0], sampling={"max_tokens": 8}, **({"blend": blend} if blend else {}))
            for blend in (
                None,
                {"policy": "full"},
                {"policy": "ask", "ratio": 1.0},
                {"policy": "heads", "ratio": 0.2},
                {"policy": "reuse"},
                {"policy": "replay", "ratio": 0.2},
            )
        }
        default, full, again, some, reused, replayed = texts.values()
        assert default["report"]["policy"] == "prefix"
        assert default["answer"] == full["answer"] == again["answer"]
        assert {chunk["source"] for chunk in reused["report"]["chunks"]} == {"lmdb"}
        assert 0 < some["usage"]["recomputed_tokens"] < reused["usage"]["reused_tokens"]
        assert replayed["usage"]["reused_tokens"] == reused["usage"]["reused_tokens"]
        refused = client.post("/v1/query", json={"question": QUESTIONS[0], "blend": {"policy": "ask", "ratio": 0.2}})
        assert refused.status_code == 422
        assert "choose replay, heads, reuse, prefix or full for this model" in refused.text
        once_more = ask(client, QUESTIONS[0], sampling={"max_tokens": 8})
        assert once_more["answer"] == full["answer"]
        assert once_more["usage"]["reused_tokens"] > 0, "the system prompt is kept with its states"


def test_it_is_handed_to_nobody(hybrid: str, tmp_path: Path) -> None:
    settings = settings_in(tmp_path, model=hybrid, generator="http://127.0.0.1:9/v1")
    with closing(compose_core(settings)) as core:
        core.wait()
        assert "has linear-attention layers, whose states vLLM takes from nobody" in (core.not_ready() or "")


def test_who_names_a_codec_alone_leaves_it_exact(hybrid: str, tmp_path: Path) -> None:
    with in_process(settings_in(tmp_path, model=hybrid, codec="q8")) as served, served.client() as client:
        put_in(client, DOCUMENTS)
        assert ask(client, QUESTIONS[0], sampling={"max_tokens": 4})["report"]["policy"] == "prefix"


def test_doctor_tells_what_its_states_take(hybrid: str, tmp_path: Path) -> None:
    told = _model(settings_in(tmp_path, model=hybrid))
    assert "2 of its 4 layers keep one state of all tokens" in told


def test_precompute_says_that_no_answer_reads_what_it_makes(
    hybrid: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some.txt").write_text("The mill stands in the valley. Mira has run it for nine years.")
    for name, value in {"MODEL": hybrid, "DATA": str(tmp_path / "data"), "EMBEDDER": "none"}.items():
        monkeypatch.setenv(f"KVWEAVE_{name}", value)
    told = CliRunner().invoke(cli.app, ["precompute", str(tmp_path / "some.txt")], catch_exceptions=False)
    assert told.exit_code == 0
    assert "`prefix`, which answers of it come by, reads none" in told.stderr
    monkeypatch.setenv("KVWEAVE_POLICY", "replay")
    (tmp_path / "more.txt").write_text("The bridge was built by her brother.")
    told = CliRunner().invoke(cli.app, ["precompute", str(tmp_path / "more.txt")], catch_exceptions=False)
    assert "1 MB of text" in told.stderr
    assert "reads none" not in told.stderr
