"""`kvweave ask` and `kvweave search` against a running service, and against none; events that they read."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service import cli
from service.commands import ask
from service.errors import Invalid
from service.event_parser import EventParser, ReceivedEvent
from tests.service.demo_served import DOCUMENTS
from tests.service.passages import QUESTIONS
from tests.service.serving import Inside, in_process, kvweave_ended, settings_in


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    with in_process(settings_in(tmp_path_factory.mktemp("asking")), documents=DOCUMENTS) as served:
        yield served


def run(inside: Inside, *arguments: str, status: int = 0) -> "subprocess.CompletedProcess[str]":
    data = str(inside.core.settings.data)
    more = {"KVWEAVE_DATA": data, "KVWEAVE_STORE": "mem://", "COLUMNS": "120"}
    return kvweave_ended(*arguments, "--url", inside.base_url, status=status, **more)


def test_an_answer_is_shown_with_its_sources(inside: Inside) -> None:
    done = run(inside, "ask", QUESTIONS[0])
    assert done.stdout.splitlines()[0] == "badger"
    assert "Letter 40" in done.stdout and "reused" in done.stderr


def test_sources_are_listed_best_first_and_what_is_to_be_known_is_told_before(
    inside: Inside, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    sources = [{"document_id": f"d{score}", "title": "", "text": "a", "score": score} for score in (0.5, 2.0, 1.0)]
    usage = {"prompt_tokens": 3, "reused_tokens": 2, "recomputed_tokens": 1}
    report = {"timings_ms": {"first_token": 1.0}, "notes": ["Mind this."]}
    told = [("fused", {"report": report}), ("token", {"text": "so"}), ("done", {"sources": sources, "usage": usage})]
    told[-1][1]["report"] = report
    ask._tell_all(iter(told))
    shown = capsys.readouterr()
    assert [word for word in shown.out.split() if word[0] == "d" and word[1].isdecimal()] == ["d2.0", "d1.0", "d0.5"]
    assert shown.err.startswith("Mind this.")


def test_machines_get_the_whole_answer(inside: Inside) -> None:
    answer = json.loads(run(inside, "ask", QUESTIONS[0], "--policy", "full", "--top-k", "1", "--json").stdout)
    assert answer["report"]["policy"] == "full" and len(answer["sources"]) == 1


def test_hits_come_best_first(inside: Inside) -> None:
    found = json.loads(run(inside, "search", "Halio badger Norworks", "--json").stdout)["hits"]
    scores = [each["score"] for each in found]
    assert len(scores) > 1 and scores == sorted(scores, reverse=True)
    assert "Letter 40" in run(inside, "search", "badger").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--key", "kvw_nonsense"), "key"),
        (("--key", "kvw_…"), "--key holds letters that no key has: copy it again"),
        (("--filter", '{"a": {"$no": 1}}'), "$no"),
        (("--filter", '{"a": "\\ud800"}'), "a text is not what its encoding promises"),
    ],
)
def test_what_is_wrong_is_one_sentence(inside: Inside, arguments: tuple[str, ...], words: str) -> None:
    done = run(inside, "ask", "Where?", *arguments, status=2)
    assert words in done.stderr and "Traceback" not in done.stderr


def test_a_host_whose_name_no_network_knows_is_no_address() -> None:
    with pytest.raises(Invalid, match="is no address"), ask._client(f"http://{'a' * 64}", "") as client:
        client.get("/healthz")


@pytest.mark.parametrize("proxy", ["socks://127.0.0.1:9", "socks5://127.0.0.1:9"])
def test_a_proxy_that_is_none_is_one_line_with_the_remedy(
    proxy: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("ALL_PROXY", proxy)
    monkeypatch.setitem(sys.modules, "socksio", None)
    monkeypatch.setattr(sys, "argv", ["kvweave", "ask", "Who?"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    told = capfd.readouterr().err
    assert ended.value.code == 2 and told.startswith("kvweave: a proxy of the environment cannot be used (")
    assert told.endswith("mend ALL_PROXY and its like, or set NO_PROXY='*'\n") and told.count("\n") == 1


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/"])
def test_the_service_and_the_key_are_those_of_the_environment_as_clients_read_it(
    inside: Inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], end: str
) -> None:
    monkeypatch.setenv("KVWEAVE_DATA", str(tmp_path))  # where no admin.key is
    monkeypatch.setenv("KVWEAVE_BASE_URL", f"{inside.base_url}{end}")
    monkeypatch.setattr(sys, "argv", ["kvweave", "search", "badger"])
    for key, status in ((inside.key, 0), ("kvw_nonsense", 2)):
        monkeypatch.setenv("KVWEAVE_API_KEY", key)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == status
    told = capfd.readouterr()
    assert "Letter 40" in told.out and "KVWEAVE_API_KEY" in told.err


@pytest.mark.parametrize(
    ("url", "is_sent"), [("", True), ("http://localhost:8000/v1", True), ("http://kv.example:8000", False)]
)
def test_the_key_of_this_machine_goes_to_no_other(
    inside: Inside, monkeypatch: pytest.MonkeyPatch, url: str, *, is_sent: bool
) -> None:
    monkeypatch.setenv("KVWEAVE_DATA", str(inside.core.settings.data))
    with ask._client(url, "") as client:
        assert client.headers.get("Authorization", "") == (f"Bearer {inside.key}" if is_sent else "")


LINES = [b": ping", b"", b"id: 7", b'data:{"a":"\xe2\x80\xa8\xc2\x85"}', b"", b"event: x", b"data: b", b"data: c", b""]


@given(st.data(), st.sampled_from([b"\n", b"\r\n"]))
def test_events_are_the_same_however_they_are_cut(data: st.DataObject, end: bytes) -> None:
    raw = end.join([*LINES, b"data: [DONE]"])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    parser = EventParser()
    parts = [raw[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    found = [event for part in parts for event in parser.feed(part)]
    assert [*found, *parser.end()] == [
        ReceivedEvent("", b'{"a":"\xe2\x80\xa8\xc2\x85"}'),
        ReceivedEvent("x", b"b\nc"),
        ReceivedEvent("", b"[DONE]"),
    ]
