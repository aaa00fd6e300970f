"""What the command line says: help pages, wrong usage, JSON for machines, and what a pipe or a terminal gets."""

import json
import os
import pty
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest
import typer
from typer.core import TyperCommand, TyperGroup
from typer.testing import CliRunner

from service import cli
from service.commands import serve, stores
from service.commands.console import address, lasting, size
from service.settings import PREFIX
from service.truth.databases import hold
from store.scrub import GRACE_S
from store.url import open_store
from tests.servers.free_port import free_port
from tests.service.serving import kvweave
from tests.store.samples import blob

NARROW = 60  # columns of the narrowest terminal that the help pages are made for


def pages() -> dict[str, TyperCommand]:
    """Every command by what somebody types."""
    found: dict[str, TyperCommand] = {}
    pending = [("kvweave", cast(TyperGroup, typer.main.get_command(cli.app)))]
    while pending:
        path, group = pending.pop()
        for name, command in group.commands.items():
            if isinstance(command, TyperGroup):
                pending.append((f"{path} {name}", command))
            else:
                found[f"{path} {name}"] = cast(TyperCommand, command)
    return found


PAGES = pages()


def helped(page: str, *, columns: int) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(columns))
        result = CliRunner().invoke(cli.app, [*page.split()[1:], "--help"], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def examples(page: str) -> list[str]:
    return [line.strip() for line in (PAGES[page].epilog or "").splitlines() if line.startswith("  ")]


@pytest.mark.parametrize("page", PAGES)
def test_a_help_page_says_what_it_does_and_has_examples_that_can_be_copied(page: str) -> None:
    found = examples(page)
    assert 1 <= len(found) <= 4 and (PAGES[page].help or "").partition(".")[0]
    for columns in (NARROW, 120):
        lines = [line.strip() for line in helped(page, columns=columns).splitlines()]
        assert [example for example in found if example not in lines] == []
        assert max(map(len, lines)) <= columns and not any("…" in line for line in lines)


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_help_page_are_understood(page: str) -> None:
    for example in examples(page):
        words = [word for word in shlex.split(example) if not word.startswith(PREFIX)]
        *path, name = page.split()
        named = next((other for other in PAGES if words[: len(other.split())] == other.split()), None)
        assert named, f"{example} is no command ({path}, {name})"
        PAGES[named].make_context(named, words[len(named.split()) :])


def test_the_first_page_groups_the_commands_and_tells_the_exit_codes() -> None:
    first = helped("kvweave", columns=NARROW)
    panels = re.findall(r"╭─ ([\w ]+?) ─", first)
    assert panels == ["Options", *cli.GROUPS, "Measure"]
    assert all(f" {page.split()[1]} " in first for page in PAGES)
    assert [line.split()[0] for line in first.partition("Exit codes:")[2].splitlines() if line.strip()][:4] == [
        *("0", "1", "2", "130")
    ]


def test_the_version_is_that_of_the_distribution() -> None:
    result = CliRunner().invoke(cli.app, ["--version"], catch_exceptions=False)
    assert re.fullmatch(r"kvweave \d+\.\d+\.\d+\n", result.stdout)


def test_numbers_for_people() -> None:
    assert [size(n) for n in (0, 1, 999, 1000, 1.25e6, 2e9, 3e12)] == [
        *("0 bytes", "1 byte", "999 bytes", "1.0 kB", "1.2 MB", "2.0 GB", "3.0 TB")
    ]
    assert [lasting(s) for s in (9.6, 600, 9000)] == ["10 s", "10 min", "2.5 h"]
    assert [address(host, 8000) for host in ("0.0.0.0", "::1", "kv.example")] == [
        *("http://127.0.0.1:8000", "http://[::1]:8000", "http://kv.example:8000")
    ]
    assert stores.GRACE_HOURS * 3600 == GRACE_S


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's present folder: no data yet, and some files that are not what they should be."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KVWEAVE_DATA", str(tmp_path / "data"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("service.telemetry.logs.setup_logs", lambda level, style: None)  # it outlives what is captured
    for folder in ("empty", "garbage"):
        (tmp_path / folder).mkdir()
    for name, text in (("file", "a file"), ("wrong.toml", "port = = 1"), ("wrong.jsonl", '{"question": ')):
        (tmp_path / name).write_text(text)
    (tmp_path / "latin.jsonl").write_bytes(b'{"question": "\xfc"}')
    (tmp_path / "asked.jsonl").write_text('{"question": "Who?", "ctxs": ["It is Anna."]}')
    (tmp_path / "garbage/control.sqlite").write_bytes(b"no database" * 1000)
    return tmp_path


def run(capfd: pytest.CaptureFixture[str], *words: str, setting: str = "") -> tuple[int, str, str]:
    """The command as somebody types it: its exit status, and what it said."""
    with pytest.MonkeyPatch.context() as patch:
        if setting:
            patch.setenv(*f"{PREFIX}{setting}".split("="))
        patch.setattr(sys, "argv", ["kvweave", *words])
        with pytest.raises(SystemExit) as raised:
            cli.main()
    out, err = capfd.readouterr()
    return cast(int, raised.value.code), out, err


WRONG = [
    ("asq", "did you mean 'ask'", ""),
    ("ask", "missing argument 'QUESTION': see kvweave ask --help", ""),
    ("ask Who? --polcy full", "no such option: --polcy", ""),
    ("ask Who? --top-k many", "'--top-k'", ""),
    ("ask Who? --filter {", "--filter takes JSON such as", ""),
    ("ask Who? --url localhost", "--url 'localhost' is no address: write it as http://", ""),
    ("search Who? --url http://127.0.0.1:9", "no service answers at http://127.0.0.1:9 (", ""),
    ("ask Who? --url http://127.0.0.1:9", "run kvweave serve", ""),
    ("search Who? --url http://host:many", "is no address", ""),
    ("serve --port 99999", "'--port'", ""),
    ("serve --host 192.0.2.1", "192.0.2.1 port 8000 cannot be bound", ""),
    ("serve", "port (KVWEAVE_PORT)", "PORT=http"),
    ("serve --host 0.0.0.0", "switch KVWEAVE_AUTH on", "AUTH=no"),
    ("stats --store nfs://here", "'nfs://here' names no store", ""),
    ("stats --store lmdb://here", "write three slashes", ""),
    ("serve --model ./nope", "'./nope' is no folder here", ""),
    ("serve --data file", "the folder file cannot be made", ""),
    ("stats", "unknown setting KVWEAVE_STOER: did you mean KVWEAVE_STORE?", "STOER=lmdb:///here"),
    ("config", "unknown setting KVWEAVE_PROT: did you mean KVWEAVE_PORT?", "PROT=1"),
    ("stats", "nowhere.toml, which is no file", "CONFIG=nowhere.toml"),
    ("stats", "wrong.toml is not valid TOML", "CONFIG=wrong.toml"),
    ("stats", "latin.jsonl is not valid TOML in UTF-8", "CONFIG=latin.jsonl"),
    ("verify --store file:///dev/null/store", "/dev/null/store cannot be used", ""),
    ("gc --grace-hours -1", "'--grace-hours'", ""),
    ("gc", "file", "DATA=file"),
    ("backup b.tar.zst", "nothing to back up", ""),
    ("restore nowhere.zst", "nowhere.zst", ""),
    ("restore file --force", "file", ""),
    ("keys", "", ""),
    ("keys create --role owner", "read, write, admin", ""),
    ("keys create --tenant 'A B'", "a tenant is named", ""),
    (f"keys create --filter {'[' * 100_000}", "--filter takes JSON", ""),
    ("keys create --filter [1]", "takes a JSON object", ""),
    ("keys create --filter '{\"$near\": 1}'", "unknown operator", ""),
    ("keys revoke 0123", "`kvweave keys list` shows the ids", ""),
    ("keys quota", "missing argument 'TENANT'", ""),
    ("keys quota acme --documents -1", "'--documents'", ""),
    ("keys list", "garbage", "DATA=garbage"),
    ("precompute", "missing argument 'PATH'", ""),
    ("precompute nowhere", "'nowhere' is no file and no folder", ""),
    ("precompute nowhere/*.md", "no file fits 'nowhere/*.md': name what is to be read", ""),
    ("precompute empty --executor moon", "'local', 'ray'", ""),
    ("precompute empty --queries asked.jsonl", "name a --budget", ""),
    ("precompute empty --budget 1GB --queries wrong.jsonl", "wrong.jsonl:1 is no JSON", ""),
    ("precompute empty --budget 1GB --queries latin.jsonl", "latin.jsonl", ""),
    ("precompute empty --model empty", "'empty' holds no config.json", ""),
    ("precompute empty --model nobody/nothing", "'nobody/nothing' is no folder here", ""),
    ("eval --suite wrong.jsonl", "wrong.jsonl, line 1 is no JSON", ""),
    ("eval --suite latin.jsonl", "save the file as UTF-8", ""),
    ("eval --ratios most", "--ratios", ""),
    ("eval --policies magic", "magic", ""),
    ("eval --codecs q9", "q9", ""),
    ("eval --bound 7", "'--bound'", ""),
    ("eval --html nowhere/page.html", "nowhere", ""),
    ("eval --save nowhere/kvweave.toml", "nowhere", ""),
    ("bench --chunks two", "--chunks", ""),
    ("bench --codecs q9", "q9", ""),
    ("bench --corpus nowhere", "nowhere", ""),
    ("bench --model file", "'file' holds no config.json", ""),
    ("demo", "file", "DATA=file"),
]


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(("words", "said", "setting"), WRONG, ids=lambda each: str(each)[:40])
def test_what_cannot_be_done_is_one_line_with_the_remedy(
    words: str, said: str, setting: str, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capfd, *shlex.split(words), setting=setting)
    assert code == 2
    if not said:
        assert "Usage: kvweave keys" in out and err == ""  # a group without a command shows its page
        return
    last = err.splitlines()[-1]  # before it stands at most what it was doing
    assert out == "" and last.startswith("kvweave: ") and said.lower() in last.lower(), err
    assert "Traceback" not in err and err.count("\nkvweave: ") + err.startswith("kvweave: ") == 1
    assert len(err.splitlines()) <= 2 and len(last) < 700


def test_a_port_that_is_taken_is_told_before_anything_is_opened(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, _, err = run(capfd, "serve", "--port", str(port))
    assert code == 2 and f"127.0.0.1 port {port} cannot be bound" in err and "--port" in err
    assert not (place / "data").exists()


def test_a_start_that_fails_leaves_nothing_open(
    place: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: object, **named: object) -> None:
        raise OSError(28, "No space left on device", "/somewhere")

    monkeypatch.setattr(serve, "server_over", broken)
    code, _, err = run(capfd, "serve", "--port", str(free_port()), "--store", "mem://")
    assert code == 2 and "kvweave: /somewhere: no space left on device: free some space" in err
    with hold(place / "data"):  # nobody else has it
        pass


def test_what_ctrl_c_stops_ends_with_130_and_a_fault_of_ours_keeps_its_traceback(
    place: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped() -> None:
        raise KeyboardInterrupt

    def faulty() -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr("service.settings.load_settings", stopped)
    assert run(capfd, "keys", "list") == (130, "", "")
    monkeypatch.setattr("service.settings.load_settings", faulty)
    monkeypatch.setattr(sys, "argv", ["kvweave", "keys", "list"])
    with pytest.raises(RuntimeError, match="ours"):
        cli.main()


MACHINES = [
    ("stats --json", list),
    ("stats --models --json", list),
    ("verify --json", dict),
    ("gc --json", dict),
    ("gc --compact --json", dict),
    ("keys list --json", list),
    ("keys create --json", dict),
    ("keys quota acme --json", dict),
    ("backup b.tar.zst --blobs --json", dict),
    ("restore b.tar.zst --force --json", dict),
]


def test_machines_get_json_and_nothing_else_on_an_empty_store_too(
    place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for words, kind in MACHINES:
        code, out, err = run(capfd, *words.split())
        assert (code, err) == (0, ""), words
        assert isinstance(json.loads(out), kind), words


@pytest.fixture
def stored(place: Path) -> str:
    """The URL of a store with blobs."""
    url = f"file://{place}/store"
    with open_store(url) as store:
        for name in range(3):
            store.put(blob(name))
    return url


def test_people_get_sentences(stored: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert re.fullmatch(r"3 blobs checked, [\d.]+ kB: all are sound\.\n", run(capfd, "verify", "--store", stored)[1])
    assert run(capfd, "gc", "--store", stored)[1] == "Nothing was to be removed.\n"
    removed = run(capfd, "gc", "--store", stored, "--fingerprint", "fp")[1]
    assert re.fullmatch(r"Removed 3 blobs \(3 of the named fingerprint\), [\d.]+ kB\.\n", removed)


def piped(words: Sequence[str]) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "FORCE_COLOR")}
    return kvweave(*words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def noted(place: Path, capfd: pytest.CaptureFixture[str]) -> str:
    """A note that is longer than a terminal is wide, at a key."""
    note = " ".join(f"word{number}" for number in range(25))
    assert run(capfd, "keys", "create", "--note", note)[0] == 0
    return note


def test_a_pipe_gets_whole_lines_without_colours_and_its_end_is_no_error(noted: str) -> None:
    with piped(["keys", "list"]) as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert noted in out and "\x1b" not in out and not out.startswith("\n")
    with piped(["keys", "list"]) as process:
        assert process.stdout and process.stderr
        process.stdout.close()  # as `| head -1` does
        assert process.stderr.read() == ""
        process.wait(60)


@pytest.mark.parametrize(("more", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
@pytest.mark.usefixtures("noted")
def test_a_terminal_gets_colours_unless_it_wants_none(more: dict[str, str], coloured: bool) -> None:  # noqa: FBT001
    shown = on_terminal(["keys", "--help"], **more)
    assert bool(re.search(r"\x1b\[(\d+;)*3\d", shown)) is coloured


def on_terminal(words: Sequence[str], **more: str) -> str:
    """What a command writes on a terminal."""
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    ours, theirs = pty.openpty()
    with closing(os.fdopen(ours, "rb", buffering=0)) as screen:
        process = kvweave(*words, env={**environment, "TERM": "xterm", **more}, stdout=theirs, stderr=theirs)
        os.close(theirs)
        shown = b"".join(_read(screen.fileno()))
        assert process.wait(60) == 0
    return shown.decode()


def _read(descriptor: int) -> Iterator[bytes]:
    """Until nobody writes any more, which Linux tells as an error."""
    while True:
        try:
            piece = os.read(descriptor, 1 << 16)
        except OSError:
            return
        if not piece:
            return
        yield piece


WIDTHS = (1.5, 1.6, 1.7, 1.8, 1.9, 2, 2.1, 2.2, 2.3, 2.4, 2.5, 2.6, 2.7, 2.8, 2.9, 3, 5, 6, 7, 8)
HEAVY = ("torch", "transformers", "faiss", "numpy", "pydantic_settings", "httpx", "fastapi", "lmdb", "obstore")
LOADED = f"""
import atexit, sys
atexit.register(lambda: sys.stderr.write(",".join(name for name in {HEAVY} if name in sys.modules)))
from service.cli import main
main()
"""


def loading(words: str, **more: str) -> tuple[str, str]:
    """What a quick command says, and what it loads that is slow."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *words.split()],
        env={**os.environ, **more},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout, done.stderr


def test_help_and_completion_are_quick() -> None:
    typed = {"COMP_WORDS": "kvweave s", "COMP_CWORD": "1", "_KVWEAVE_COMPLETE": "complete_bash"}
    assert loading("precompute --help")[1] == ""
    assert loading("", **typed) == ("serve\nsearch\nstats\n", "")
    assert "complete -o default -F _kvweave_completion kvweave" in loading("", _KVWEAVE_COMPLETE="source_bash")[0]


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("kvweave s", ["serve", "search", "stats"]),
        ("kvweave ask x --policy re", ["reuse", "replay"]),
        ("kvweave eval --codecs q4,q", [f"q4,q{bits}" for bits in WIDTHS]),
        ("kvweave keys create --role w", ["write"]),
        ("kvweave precompute . --executor r", ["ray"]),
    ],
)
def test_shells_complete_commands_and_values(
    typed: str, offered: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_KVWEAVE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
    code, out, _ = run(capfd)
    assert (code, out.split()) == (0, offered)
