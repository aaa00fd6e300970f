"""`kvweave demo`: a race, then right answers from stored chunks with the documents that hold them, in one folder."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.cells import cell_len
from typer.testing import CliRunner, Result

from retriever.readers.files import read_file
from service import cli
from service.lab.demo import demo_answers, race
from service.lab.demo.demo_answers import CORPUS, EXAMPLES, Example
from service.settings import PREFIX, Settings
from service.truth.databases import hold
from tests.service.serving import Json, ask, in_process

ELSEWHERE = {"MODEL": "/nowhere", "EMBEDDER": "/nowhere", "POLICY": "full", "CODEC": "q2", "TOP_K": "1"}
PLACES = sorted(CORPUS.iterdir())


RACED = ["full", "reuse", race.ASK]


@contextmanager
def over(folder: Path, *, columns: int = 120) -> Iterator[None]:
    """A user whose own settings would not do for the demo."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(columns))
        patch.setenv(f"{PREFIX}DATA", str(folder))
        for name, value in ELSEWHERE.items():
            patch.setenv(PREFIX + name, value)
        patch.setattr(demo_answers, "TIMES", 1)  # times are not looked at
        patch.setattr(race, "ROUNDS", 1)
        patch.setattr(race, "CHUNKS", 3)
        patch.setattr(race, "SHAPE", {**race.SHAPE, "num_hidden_layers": 12, "hidden_size": 144})
        yield


def demo(folder: Path, *options: str, columns: int = 120) -> Result:
    with over(folder, columns=columns):
        return CliRunner().invoke(cli.app, ["demo", *options], catch_exceptions=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("user")


@pytest.fixture(scope="module")
def shown(folder: Path) -> Json:
    """The first run of all."""
    result = demo(folder, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_every_answer_is_right_in_full_and_blended(shown: Json) -> None:
    for example, answered in zip(EXAMPLES, shown["answers"], strict=True):
        full, blended = answered["policies"]
        assert (full["policy"], blended["policy"].partition("/")[0]) == ("full", "ask")
        assert [full["answer"], blended["answer"]] == [example.answer, example.answer]
        assert full["reused"] == full["recomputed"] == full["nbytes"] == 0
        assert blended["reused"] > blended["recomputed"] > 0 and blended["nbytes"] > 0
        assert full["prompt"] == blended["prompt"] > blended["reused"] + blended["recomputed"]


def test_the_race_compares_full_prefill_with_reuse_and_the_policy_that_it_names(shown: Json) -> None:
    full, reuse, blended = shown["race"]["policies"]
    assert [row["policy"] for row in (full, reuse, blended)] == RACED
    assert {row["prompt_tokens"] for row in (full, reuse, blended)} == {shown["race"]["tokens"]}
    assert full["reused"] == full["nbytes"] == 0 and full["against_full"]["times"] == 1
    assert reuse["recomputed"] == 0 < blended["recomputed"] and blended["ratio"] == race.RATIO
    assert reuse["reused"] == blended["reused"] + blended["recomputed"] > 0 and blended["nbytes"] > 0


def damaged(store: Path) -> None:
    """Turns what stands in the file's second half."""
    content = bytearray((store / "data.mdb").read_bytes())
    half = len(content) // 2
    content[half:] = bytes(each ^ 0xFF for each in content[half:])
    (store / "data.mdb").write_bytes(content)


@pytest.mark.parametrize(
    "spoil", [damaged, lambda store: (store / "data.mdb").write_bytes(b"no database" * 1000)], ids=["turned", "other"]
)
@pytest.mark.usefixtures("shown")
def test_what_the_race_keeps_is_made_again_only_where_it_is_damaged(
    spoil: Callable[[Path], object], folder: Path
) -> None:
    written: list[str] = []
    with over(folder), pytest.MonkeyPatch.context() as patch:
        write = race.ScratchStore.write
        patch.setattr(race.ScratchStore, "write", lambda *given, **named: written.append("") or write(*given, **named))
        for times in (0, 1, 1):
            settings = demo_answers.demo_settings(Settings(data=folder, store="mem://"))
            with race.race_track(settings, on_stage=lambda stage: None) as track:
                assert [row.policy for row in track.run(on_turn=lambda point: None)] == RACED
            assert len(written) == times
            if not times:
                spoil(folder / demo_answers.FOLDER / race.FOLDER)


def test_the_sources_name_the_documents_which_hold_the_answer(shown: Json) -> None:
    texts = {f"{CORPUS.name}/{place.name}": place.read_text() for place in PLACES}
    for example, answered in zip(EXAMPLES, shown["answers"], strict=True):
        found = {each["document"]: each["sentence"] for each in answered["sources"]}
        for sentence in example.holds:
            [holding] = [name for name, text in texts.items() if sentence in text]
            assert found[holding] == sentence
        assert sum(map(bool, found.values())) == len(example.holds)
    assert [len(example.holds) for example in EXAMPLES] == [1, 2, 2]


def test_a_second_run_computes_nothing_and_the_users_own_data_is_not_touched(shown: Json, folder: Path) -> None:
    again = json.loads(demo(folder, "--json").stdout)
    assert shown["corpus"] == {"documents": len(PLACES), "chunks": len(PLACES), "present": 0, "stored": len(PLACES)}
    assert again["corpus"] == {**shown["corpus"], "present": len(PLACES), "stored": 0}
    assert [path.name for path in folder.iterdir()] == [demo_answers.FOLDER]


def assert_fits(result: Result, folder: Path, *, columns: int) -> None:
    """What it says fits the terminal, but for what is to be copied."""
    assert result.stderr == "" and "\x1b" not in result.stdout and "…" not in result.stdout
    own = folder / demo_answers.FOLDER
    copied = [f"   {PREFIX}DATA={own} ", f"   {own / 'admin.key'}", f"   {PREFIX}MODEL=NAME kvweave "]
    whole = [line for line in result.stdout.splitlines() if any(map(line.startswith, copied))]
    assert len(whole) == 5 and f"{PREFIX}MODEL=builtin" in whole[0] and whole[0].endswith(" kvweave serve")
    others = [line for line in result.stdout.splitlines() if line not in whole]
    assert [line for line in others if cell_len(line) > columns] == []


@pytest.mark.usefixtures("shown")
def test_the_text_fits_the_terminal_and_leaves_whole_what_is_to_be_copied(folder: Path) -> None:
    result = demo(folder, columns=60)
    assert result.exit_code == 0
    assert_fits(result, folder, columns=60)
    for example in EXAMPLES:
        assert example.question in result.stdout and f"   {example.answer}\n" in result.stdout
        assert all(sentence in result.stdout for sentence in example.holds)


@pytest.mark.usefixtures("shown")
def test_a_service_over_its_folder_has_the_page_and_gives_the_same_answers(folder: Path) -> None:
    own = folder / demo_answers.FOLDER
    with in_process(Settings(data=own, store=f"lmdb://{own}/store")) as inside, inside.client() as client:
        assert client.get("/").headers["content-type"].startswith("text/html")
        for example in EXAMPLES:
            answer = ask(client, example.question)
            assert answer["answer"] == example.answer and answer["usage"]["reused_tokens"] > 0


@pytest.mark.usefixtures("shown")
def test_a_wrong_answer_is_shown_and_fails_the_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Example(EXAMPLES[0].question, "heron", EXAMPLES[0].holds)
    monkeypatch.setattr(demo_answers, "EXAMPLES", [wrong])
    result = demo(folder, columns=120)
    assert result.exit_code == 1 and EXAMPLES[0].answer in result.stdout
    assert_fits(result, folder, columns=120)


def garbage(name: str) -> Callable[[Path], None]:
    def spoil(own: Path) -> None:
        (own / name).parent.mkdir(parents=True, exist_ok=True)
        (own / name).write_bytes(b"no database" * 1000)

    return spoil


BROKEN = [
    garbage("control.sqlite"),
    garbage("tenants/default/catalog.sqlite"),
    garbage("store"),
    garbage("tenants"),
    lambda own: own.write_text("a file"),
]


@pytest.mark.parametrize("spoil", BROKEN)
def test_a_broken_folder_is_one_clear_line(
    spoil: Callable[[Path], None], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / demo_answers.FOLDER
    spoil(own)
    assert_one_line(tmp_path, capfd)


@pytest.mark.usefixtures("shown")
def test_a_folder_that_a_service_holds_is_one_clear_line(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with hold(folder / demo_answers.FOLDER):
        assert_one_line(folder, capfd)


def assert_one_line(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with over(folder), pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["kvweave", "demo"])
        with pytest.raises(SystemExit) as raised:
            cli.main()
    out, err = capfd.readouterr()
    assert raised.value.code == 2
    assert (
        out == "" and err.startswith("kvweave: ") and err.count("\n") == 1 and str(folder / demo_answers.FOLDER) in err
    )


def test_the_corpus_is_read_as_one_document_a_file() -> None:
    readings = [read_file(place) for place in PLACES]
    assert all(len(reading.drafts) == 1 and not reading.problems for reading in readings)
    titles = [reading.drafts[0].title for reading in readings]
    assert [title.lower().replace(" ", "-") for title in titles] == [place.stem for place in PLACES]
