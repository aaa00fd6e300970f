"""Compares the documentation with the code: what exists is documented, what is documented exists."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import cast, get_args

import pytest
import typer
from pydantic import BaseModel, SecretStr
from typer.core import TyperCommand, TyperGroup

from service.app.composition import compose_core
from service.application import application
from service.cli import app as cli
from service.settings import CONFIG, OF_CLIENTS, Settings, load_settings
from store.errors import MissReason
from store.record import Record
from store.url import open_store
from tests.examples import examples_in
from tests.store.samples import record

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
TROUBLESHOOTING = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
PAGES = "\n".join([README, *(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md")))])
PRODUCT = ("blend", "retriever", "service", "store")

MOST_LINES, MOST_LETTERS = 100, 120  # of README, and of a line of it
MOST_SETTINGS = 35
WORDS_OF_A_SENTENCE = 4

Command = TyperCommand | TyperGroup


def code_in(markdown: str) -> str:
    """What stands in fenced blocks and between backticks, line by line."""
    fenced = re.findall(r"^```[^\n]*\n(.*?)^```", markdown, re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^```.*?^```", "", markdown, flags=re.MULTILINE | re.DOTALL)
    return "\n".join([*fenced, *re.findall(r"`([^`\n]+)`", prose)])


def commands_in(markdown: str) -> set[str]:
    return set(re.findall(r"\bkvweave ([a-z][a-z-]*)", code_in(markdown)))


def targets_in(markdown: str) -> set[str]:
    return set(re.findall(r"^\W*make ([a-z][a-z-]*)", code_in(markdown), re.MULTILINE))


def settings_in(markdown: str) -> set[str]:
    return set(re.findall(r"\bKVWEAVE_[A-Z0-9_]*[A-Z0-9]", markdown))


def paths_in(markdown: str) -> set[str]:
    return set(re.findall(r"/v1/[\w{}./-]*[\w}]", code_in(markdown).replace("$", "")))


def shape(path: str) -> str:
    """A path with its parameters' names left out: the reader need not see ours."""
    return re.sub(r"\{\w+\}", "{}", path)


def command_lines_in(markdown: str) -> list[list[str]]:
    """What stands behind `kvweave` in the lines of fenced blocks, as a shell hands it over."""
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", markdown, re.MULTILINE | re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    split = [shlex.split(line, comments=True) for line in lines if re.search(r"(^|\s)kvweave\s", line)]
    return [words[words.index("kvweave") + 1 :] for words in split if "kvweave" in words]


def options_in(markdown: str) -> set[str]:
    """Those that prose names, alone or behind their command: these with it, as in `gc --compact`."""
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", markdown, flags=re.MULTILINE | re.DOTALL))
    found: set[str] = set()
    for span in spans:
        told = re.match(r"(?:.*\bkvweave ([a-z]+(?: [a-z]+)?) .*?)?(?<![\w-])(--[a-z][a-z-]*)", span)
        found |= {f"{told[1]} {told[2]}" if told[1] else told[2]} if told else set()
    return found


def sentences_in(markdown: str) -> list[str]:
    """What tables quote, one sentence a row, with `…` for values."""
    return re.findall(r"^\| `([^`\n]+)` \| ", markdown, re.MULTILINE)


def texts_of(code: str) -> Iterator[str]:
    """The string literals of a file, with `…` where an f-string has a value."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def command_line() -> TyperGroup:
    return cast("TyperGroup", typer.main.get_command(cli))


def below(command: Command) -> dict[str, Command]:
    return cast("dict[str, Command]", command.commands) if isinstance(command, TyperGroup) else {}


def check(words: list[str], command: Command) -> None:
    """Parse a command line and run nothing. Raises what the command line would say."""
    rest = list(words)
    while inner := below(command):
        command = inner[rest.pop(0)]
    command.make_context(command.name, rest)


def options_of(command: Command, path: str = "") -> Iterator[str]:
    """Of a command and those below it: each alone, and behind its command."""
    for option in ("--help", *(name for parameter in command.params for name in parameter.opts)):
        yield from (option, f"{path} {option}")
    for name, inner in below(command).items():
        yield from options_of(inner, f"{path} {name}".strip())


def is_served(path: str, endpoints: set[str]) -> bool:
    """Whether a template or an example such as /v1/documents/handbook leads to an endpoint."""
    examples = (re.escape(endpoint).replace(r"\{\}", r"[^/]+") for endpoint in endpoints)
    return any(re.fullmatch(example, shape(path)) for example in examples)


def environment_names(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        candidates = (field.annotation, *get_args(field.annotation))
        nested = [each for each in candidates if isinstance(each, type) and issubclass(each, BaseModel)]
        for inner in nested:
            yield from environment_names(inner, f"{prefix}{name.upper()}__")
        if not nested:
            yield f"{prefix}{name.upper()}"


@pytest.fixture(scope="module")
def settings() -> set[str]:
    names = environment_names(Settings, str(Settings.model_config.get("env_prefix", "")).upper())
    return {CONFIG, *names}


@pytest.fixture(scope="module")
def commands() -> set[str]:
    return set(getattr(typer.main.get_command(cli), "commands", {}))


@pytest.fixture(scope="module")
def described() -> dict[str, dict[str, object]]:
    """The methods of each path, as the service describes itself."""
    return application(lambda: compose_core(load_settings())).openapi()["paths"]


@pytest.fixture(scope="module")
def endpoints(described: dict[str, dict[str, object]]) -> set[str]:
    return {shape(path) for path in described}


@pytest.fixture(scope="module")
def targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    rules = re.findall(r"^([a-z][a-z -]*):(?!=)", makefile, re.MULTILINE)
    return {target for rule in rules for target in rule.split()}


def test_the_commands_are_the_documented_ones(commands: set[str]) -> None:
    assert commands
    assert commands_in(PAGES) == commands


def test_the_command_lines_are_ones_that_the_commands_take() -> None:
    lines = command_lines_in(PAGES)
    assert {line[0] for line in lines} >= {"precompute", "serve", "ask", "bench", "eval", "backup", "restore", "gc"}
    for line in lines:
        check(line, command_line())


def test_the_options_that_prose_names_exist() -> None:
    assert "--save" in options_in(PAGES)
    assert options_in(PAGES) <= set(options_of(command_line()))


def test_the_settings_are_the_documented_ones(settings: set[str]) -> None:
    assert settings
    assert settings_in(PAGES) == settings | {*OF_CLIENTS}


def test_the_settings_stay_few(settings: set[str]) -> None:
    assert len(settings) <= MOST_SETTINGS


def test_each_setting_is_described_in_the_line_that_names_it(settings: set[str]) -> None:
    described: set[str] = set()
    for line in PAGES.splitlines():
        words = re.findall(r"[A-Za-z]+", re.sub(r"`[^`]*`", "", line))
        described |= settings_in(line) if len(words) >= WORDS_OF_A_SENTENCE else set()
    assert settings - described == set()


def test_the_sample_file_of_settings_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (sample,) = re.findall(r"^```toml\n(.*?)^```", PAGES, re.MULTILINE | re.DOTALL)
    (tmp_path / "kvweave.toml").write_text(sample)
    monkeypatch.setenv(CONFIG, str(tmp_path / "kvweave.toml"))
    settings = load_settings()
    assert settings.embedder and settings.log_style == "json"
    open_store(settings.store.replace(":///", f"://{tmp_path}/")).close()


def test_the_defaults_of_settings_are_the_documented_ones() -> None:
    prefix = str(Settings.model_config.get("env_prefix", "")).upper()
    for name, field in Settings.model_fields.items():
        default = field.default.get_secret_value() if isinstance(field.default, SecretStr) else field.default
        if field.default_factory is None:  # others depend on the machine
            shown = f"`{str(default).lower()}`" if default not in ("", None) else "none"
            assert f"\n| `{prefix}{name.upper()}` | {shown} |" in PAGES


def sizes() -> dict[str, int]:
    """Bytes of a token by model, as the table of sizing has them."""
    row = r"^\| ([^|]+) \| (\d+) \| (\d+) \| (\d+) \| ([\d,]+) \| ([\d.]+) \|$"
    [bits] = re.findall(r"plans\s+with\s+([\d.]+)\s+bits", PAGES)
    found: dict[str, int] = {}
    for name, layers, heads, dim, nbytes, packed in re.findall(row, PAGES, re.MULTILINE):
        numbers = 2 * int(layers) * int(heads) * int(dim)
        assert (name, nbytes) == (name, f"{2 * numbers:,}")
        assert (name, packed) == (name, f"{numbers * float(bits) / 8 / 1000:.1f}")
        found[name] = 2 * numbers
    return found


def test_the_sizes_of_models_follow_from_their_shapes() -> None:
    known = sizes()
    assert len(known) > 10
    eight = next(nbytes for name, nbytes in known.items() if name.startswith("Llama 3.1 8B"))
    tokens = Settings.model_fields["kv_bytes"].default // eight
    assert re.search(rf"4\s+GiB\s+holds\s+{tokens:,}\s+tokens\s+of\s+an\s+8B", PAGES)


def test_every_endpoint_is_documented(endpoints: set[str]) -> None:
    assert endpoints
    documented = {shape(path) for path in re.findall(r"/[\w{}./-]*", code_in(PAGES))}
    assert endpoints - documented == set()


def test_every_endpoint_has_an_example(described: dict[str, dict[str, object]]) -> None:
    """`tests/service/test_openapi.py` sends them."""
    page = (ROOT / "docs" / "endpoints.md").read_text(encoding="utf-8")
    shown = {(example.method, example.path.partition("?")[0]) for example in examples_in(page)}
    served = {(method.upper(), path) for path, methods in described.items() for method in methods}
    missing = [(m, p) for m, p in served if not any(m == n and is_served(q, {shape(p)}) for n, q in shown)]
    assert missing == []


def test_every_documented_endpoint_is_served(endpoints: set[str]) -> None:
    assert {path for path in paths_in(PAGES) if not is_served(path, endpoints)} == set()


def test_the_make_targets_are_the_documented_ones(targets: set[str]) -> None:
    assert targets
    assert targets_in(CONTRIBUTING) == targets
    assert targets_in(PAGES) <= targets


def test_the_quoted_sentences_are_the_code_s() -> None:
    quoted = sentences_in(TROUBLESHOOTING)
    assert len(quoted) > 20
    files = [path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py")]
    texts = [text for path in files for text in texts_of(path.read_text(encoding="utf-8"))]
    assert [sentence for sentence in quoted if not any(sentence in text for text in texts)] == []


def test_every_reason_of_a_miss_is_explained() -> None:
    rows = re.findall(r"^\| ((?:`[^`]+`(?:, )?)+) \|", TROUBLESHOOTING, re.MULTILINE)
    named = {word for row in rows for word in re.findall(r"`([^`]+)`", row)}
    assert {reason.value for reason in MissReason} - named == set()


def test_the_readme_is_read_to_its_end() -> None:
    lines = README.splitlines()
    assert len(lines) <= MOST_LINES
    assert [line for line in lines if len(line) > MOST_LETTERS] == []


def test_the_readme_leads_to_every_page() -> None:
    pages = {f"docs/{path.name}" for path in (ROOT / "docs").iterdir() if path.is_file()}
    assert pages
    assert {page for page in pages if f"]({page})" not in README} == set()


GONE = """
```
KVWEAVE_PORT=1 kvweave keys create --tenant acme \\
    --filter '{"team": "law"}'     # a key
docker compose exec service kvweave verify --json | tail
kvweave serve --colour red
```
and `kvweave gc --colour`, `--json`
"""


def test_a_command_line_is_read_as_a_shell_reads_it() -> None:
    keys, verify, serve = command_lines_in(GONE)
    assert keys == ["keys", "create", "--tenant", "acme", "--filter", '{"team": "law"}']
    assert (verify[:2], serve) == (["verify", "--json"], ["serve", "--colour", "red"])


def test_a_stale_option_is_noticed() -> None:
    command = command_line()
    with pytest.raises(Exception, match="--colour"):
        check(["serve", "--colour", "red"], command)
    assert options_in(GONE) - set(options_of(command)) == {"gc --colour"}


def test_a_sentence_is_quoted_with_its_values_left_out() -> None:
    code = 'raise Full(\n    f"{disk} is full: "\n    f"free {needed:,} bytes"\n)'
    [sentence] = sentences_in("| it says | helps |\n|---|---|\n| `… is full: free … bytes` | see `df` |")
    assert sentence in [*texts_of(code)]
    assert sentence not in [*texts_of(code.replace("free", "spare"))]


def test_an_example_leads_to_an_endpoint_and_a_stale_one_does_not() -> None:
    endpoints = {"/v1/documents/{}", "/v1/jobs/{}"}
    assert is_served("/v1/jobs/{job_id}", endpoints)
    assert is_served("/v1/documents/handbook", endpoints)
    assert not is_served("/v1/documents/handbook/pages", endpoints)


def test_the_example_runs(tmp_path: Path) -> None:
    examples = re.findall(r"^```python\n(.*?)^```", PAGES, re.MULTILINE | re.DOTALL)
    (example,) = [each for each in examples if "open_store" in each]
    example = example.replace("/var/lib/kvweave", f"{tmp_path}/store")
    known: dict[str, object] = {"chunk_id": "c", "fingerprint": "f", "record": record()}
    exec(compile(example, "docs/store.md", "exec"), known)
    assert isinstance(known["back"], Record)
    with open_store(f"lmdb://{tmp_path}/store") as store:
        assert list(store.entries()) == []
