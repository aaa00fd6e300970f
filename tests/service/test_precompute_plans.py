"""`kvweave precompute` within a budget, and by the questions of a log. The command runs in this process."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from random import Random
from urllib.parse import quote

import pytest

from blend.engine.local_engine import LocalEngine
from retriever.catalog.sqlite import SqliteCatalog
from retriever.filter_condition import EVERYTHING
from service import cli
from service.app import composition
from service.commands import shown_progress
from service.documents import chunk_capture
from service.documents.need import read_log
from service.errors import Invalid
from service.model.served_model import Ids
from store.blob import Blob, Head
from store.blob_store import Put
from store.lmdb.lmdb_store import LmdbStore
from store.reader import BlobReader
from store.url import open_store
from tests.service.checkpoints import loaded_once, small
from tests.service.serving import Inside, Json, ask, good, in_process, settings_in
from tests.service.test_precompute import Place

ANIMALS = ("otter", "heron", "badger", "lynx", "marten", "osprey", "tortoise", "weasel", "gannet", "ibex", "jackal")
LOG = ["Where does the lynx sleep?", "What does the lynx eat?", "Who saw the gannet?", "Who saw an ibex or a heron?"]
SPLIT = "Where does\u2028the lynx\u0085sleep?"  # by what ends a line elsewhere
CHECKED = 1  # chunks that each start computes again, to compare them with what is stored
SMALL, MIDDLE = 320_000, 580_000  # bytes, of about 1,450,000 that the letters take


class Killed(BaseException):
    """Nobody handles it."""


class Near(Place):
    """A place where the command runs in this process, with models that are loaded once."""

    def __init__(self, folder: Path, *, store: str = "", **settings: object) -> None:
        super().__init__(folder)
        named = {"store": store or self.settings["KVWEAVE_STORE"], **settings}
        self.settings: dict[str, str] = {
            **self.settings,
            **{f"KVWEAVE_{name.upper()}": str(value) for name, value in named.items()},
        }
        self.captured: list[Ids] = []  # what the last run computed

    def run(self, *arguments: str, status: int = 0) -> Json:
        """As `Place.run`."""
        told, said = self.command("precompute", *arguments, "--json", status=status)
        last = json.loads(told.splitlines()[-1]) if told else {}
        return last if last and last.get("event") != "cost" else {"error": said}

    def command(self, *arguments: str, status: int = 0) -> tuple[str, str]:
        """What `kvweave` says, and what it says on standard error."""
        self.captured.clear()
        told, said, code = StringIO(), StringIO(), None
        with self._patched(["kvweave", *arguments]):
            try:
                with redirect_stdout(told), redirect_stderr(said):
                    cli.main()
            except SystemExit as end:
                code = end.code
        assert (code or 0) == status, said.getvalue()
        return told.getvalue(), said.getvalue()

    @contextmanager
    def _patched(self, argv: Sequence[str]) -> Iterator[None]:
        capture = LocalEngine.capture

        def noted(
            engine: LocalEngine, prefix: Ids, chunks: Sequence[Ids], *, before: Sequence[Ids] = (), payer: str = ""
        ) -> object:
            self.captured.extend(chunks)
            return capture(engine, prefix, chunks, before=before, payer=payer)

        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.settings.items():
                patch.setenv(name, value)
            patch.setattr("sys.argv", list(argv))
            patch.setattr(composition, "load", loaded_once)
            patch.setattr(LocalEngine, "capture", noted)
            yield

    def sizes(self) -> dict[str, int]:
        """Bytes of the stored chunks, as the store accounts for them."""
        with open_store(self.settings["KVWEAVE_STORE"]) as store:
            return {entry.key.chunk: entry.nbytes for entry in store.entries()}

    def heads(self) -> dict[str, Head]:
        """Those of the stored chunks."""
        with open_store(self.settings["KVWEAVE_STORE"]) as store:
            readers = {entry.key.chunk: store.open(entry.key) for entry in store.entries()}
            return {chunk: found.head for chunk, found in readers.items() if isinstance(found, BlobReader)}

    def documents(self) -> dict[str, list[str]]:
        """The ids of their chunks."""
        catalog = SqliteCatalog(self.folder / "data/tenants/default/catalog.sqlite")
        with catalog.view() as view:
            found = view.documents(EVERYTHING, limit=10_000)
            chunks = {each.id: [passage.id for passage in view.passages(each.id)] for each in found}
        catalog.close()
        return chunks

    @contextmanager
    def served(self) -> Iterator[Inside]:
        """A service on what is there."""
        named = {name.removeprefix("KVWEAVE_").lower(): value for name, value in self.settings.items()}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(composition, "load", loaded_once)
            with in_process(settings_in(self.folder, **named)) as inside:
                yield inside


def small_place(folder: Path) -> Near:
    """Where it is asked what becomes of files, and not what a model knows: a quarter of the work."""
    return Near(folder, model=small())


def letters(folder: Path, *, count: int = len(ANIMALS)) -> Path:
    """Files of one chunk each, about one animal each."""
    root, chance = folder / "letters", Random(7)
    root.mkdir()
    for number, animal in enumerate(ANIMALS[:count]):
        words = " ".join(chance.choices(["river", "lamp", "coin", "harbor", "signal"], k=chance.randint(10, 45)))
        (root / f"{number:02}.md").write_text(f"# Letter\n\nThe {animal} sleeps there. {words}.\n", encoding="utf-8")
    return root


def log_of(folder: Path, questions: Sequence[str]) -> str:
    """A file of them, and its name."""
    path = folder / "log.jsonl"
    path.write_text("".join(json.dumps({"question": each}) + "\n" for each in questions), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(("scheme", "budgets"), [("lmdb", (1, SMALL, MIDDLE)), ("file", (SMALL, MIDDLE))])
def test_a_budget_is_kept_and_every_document_serves(tmp_path: Path, scheme: str, budgets: tuple[int, ...]) -> None:
    root, place = letters(tmp_path), Near(tmp_path, store=f"{scheme}://{tmp_path}/store")
    before: set[str] = set()
    for budget in budgets:
        done = place.run(str(root), "--budget", str(budget))
        sizes = place.sizes()
        assert sum(sizes.values()) <= budget and before <= sizes.keys()
        assert (done["chunks"], done["over_budget"]) == (len(ANIMALS), len(ANIMALS) - len(sizes))
        assert done["stored"] == len(sizes) - len(before) and not done["dropped"]
        assert len(place.documents()) == len(ANIMALS)
        again = place.run(str(root), "--budget", str(budget))
        assert (again["stored"], again["over_budget"]) == (0, done["over_budget"])
        assert len(place.captured) <= CHECKED and place.sizes() == sizes
        before = set(sizes)
    assert 0 < len(before) < len(ANIMALS)
    done = place.run(str(root))
    assert (done["over_budget"], len(place.sizes())) == (0, len(ANIMALS))


def test_a_run_within_a_budget_that_was_killed_goes_on_to_the_same_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_capture, "BATCH_CHUNKS", 2)
    root, arguments = letters(tmp_path), ("--budget", str(MIDDLE), "--queries", log_of(tmp_path, LOG))
    whole, place = Near(tmp_path / "whole"), Near(tmp_path / "killed")
    whole.run(str(root), *arguments)
    for _ in range(2):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LmdbStore, "put_all", _killed_at(2))
            with pytest.raises(Killed):
                place.run(str(root), *arguments)
    place.run(str(root), *arguments)
    assert place.sizes() == whole.sizes()
    place.run(str(root), *arguments)
    assert len(place.captured) <= CHECKED


def test_of_new_files_alone_it_is_tried_whether_they_fit(tmp_path: Path) -> None:
    root, place = letters(tmp_path), Near(tmp_path)
    place.run(str(root))
    budget = str(sum(place.sizes().values()) - 1)
    place = Near(tmp_path / "tight")
    done = place.run(str(root), "--budget", budget)
    assert done["over_budget"] == 1
    (root / "new.md").write_text("The mole.\n", encoding="utf-8")
    more = place.run(str(root), "--budget", budget)
    assert (more["stored"], more["over_budget"], more["documents"]) == (1, 1, 1)
    assert len(place.captured) <= CHECKED + 1
    (root / "newer.md").write_text("The mole sleeps. " * 25, encoding="utf-8")
    full = place.run(str(root), "--budget", budget)
    assert (full["stored"], full["over_budget"], full["documents"]) == (0, 2, 1)
    assert len(place.captured) <= CHECKED + 1 and sum(place.sizes().values()) <= int(budget)


def test_it_goes_on_where_a_delete_made_room(tmp_path: Path) -> None:
    root, place = letters(tmp_path), Near(tmp_path)
    place.run(str(root), "--budget", str(MIDDLE))
    before = place.sizes()
    for document in [name for name, [chunk] in place.documents().items() if chunk in before][:3]:
        (tmp_path / document).unlink()
    place.run(str(root), "--budget", str(MIDDLE), "--prune")
    gone = place.sizes()
    assert len(gone) == len(before) - 3
    assert place.run(str(root), "--budget", str(MIDDLE))["stored"] > 0
    assert gone.keys() < place.sizes().keys() and sum(place.sizes().values()) <= MIDDLE
    place.run(str(root), "--budget", str(MIDDLE))
    assert len(place.captured) <= CHECKED


@pytest.mark.parametrize(("scheme", "budget"), [("file", SMALL), ("lmdb", MIDDLE)])  # lmdb counts pages of its file
def test_a_store_with_a_budget_of_its_own_is_a_normal_state(tmp_path: Path, scheme: str, budget: int) -> None:
    root, place = letters(tmp_path), Near(tmp_path, store=f"{scheme}://{tmp_path}/store?budget={budget}")
    done = place.run(str(root))
    sizes = place.sizes()
    assert 0 < done["stored"] == len(sizes) == len(ANIMALS) - done["over_budget"] < len(ANIMALS)
    assert sum(sizes.values()) <= budget and len(place.documents()) == len(ANIMALS)
    again = place.run(str(root))
    assert (again["stored"], again["over_budget"], again["problems"]) == (0, done["over_budget"], [])
    assert len(place.captured) <= CHECKED
    place.settings["KVWEAVE_STORE"] = f"{scheme}://{tmp_path}/store?budget=1GB"
    assert place.run(str(root))["over_budget"] == 0
    assert len(place.sizes()) == len(ANIMALS)


def test_a_full_store_ends_a_run_that_has_a_budget_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_capture, "BATCH_CHUNKS", 1)
    root, place = letters(tmp_path), Near(tmp_path, store=f"file://{tmp_path}/store?budget={SMALL}")
    done = place.run(str(root), "--budget", "1GB")
    assert done["stored"] == len(place.sizes()) and done["stored"] + done["over_budget"] == len(ANIMALS)
    assert len(place.captured) <= len(place.sizes()) + 2 + CHECKED, "it goes on where nothing fits"


@pytest.mark.parametrize("arguments", [(), ("--budget", "1GB")])
def test_progress_goes_by_what_is_computed_of_one_file_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setattr(chunk_capture, "BATCH_CHUNKS", 2)
    monkeypatch.setattr(shown_progress, "LINE_S", 0.0)
    path = tmp_path / "letters.jsonl"
    path.write_text("".join(json.dumps({"text": f"The {each} sleeps there."}) + "\n" for each in ANIMALS))
    told, _ = Near(tmp_path).command("precompute", str(path), *arguments, "--json")
    *events, done = [each for each in map(json.loads, told.splitlines()) if each["event"] != "cost"]
    shares = [each["worked_bytes"] / each["of_bytes"] for each in events]
    assert shares == sorted(shares) and {each["of_bytes"] for each in events} == {path.stat().st_size}
    assert all(share <= each["stored"] / len(ANIMALS) + 0.1 for share, each in zip(shares, events, strict=True))
    assert any(0.1 < share < 0.9 for share in shares) and done["worked_bytes"] == path.stat().st_size


@pytest.mark.parametrize(("setting", "value"), [("policy", "full"), ("share", "0")])
def test_a_run_warns_where_no_answer_would_read_what_it_computes(tmp_path: Path, setting: str, value: str) -> None:
    root = str(letters(tmp_path, count=1))
    arguments = ("precompute", root, "--dry-run")
    assert "reuse is off" not in Near(tmp_path).command(*arguments)[1]
    assert "reuse is off" in Near(tmp_path, **{setting: value}).command(*arguments)[1]


def test_the_service_says_which_chunks_are_over_budget(tmp_path: Path) -> None:
    root, place = letters(tmp_path), Near(tmp_path)
    place.run(str(root), "--budget", str(SMALL))
    stored = place.sizes().keys()
    with place.served() as service, service.client() as client:
        for document, [chunk] in place.documents().items():
            [told] = good(client.get(f"/v1/documents/{quote(document, safe='')}/chunks"))["chunks"]
            assert told["state"] == ("stored" if chunk in stored else "over budget")
        found = ask(client, "Where does the animal sleep?", top_k=len(ANIMALS), sampling={"max_tokens": 1})["report"]
    reasons = {chunk["chunk_id"]: chunk.get("miss_reason") for chunk in found["chunks"]}
    assert reasons.keys() - stored
    assert reasons == {chunk: None if chunk in stored else "over budget" for chunk in reasons}


def test_what_the_questions_need_most_is_stored_first(tmp_path: Path) -> None:
    root, place = letters(tmp_path), Near(tmp_path)
    place.run(str(root), "--budget", "1")
    need = _searched(place, LOG, top_k=5)
    done = place.run(str(root), "--budget", str(SMALL), "--queries", log_of(tmp_path, LOG))
    sizes = place.sizes()
    assert 0 < done["stored"] == len(sizes) and sum(sizes.values()) <= SMALL
    others = {chunk for chunks in place.documents().values() for chunk in chunks} - sizes.keys()
    assert min(need[chunk] for chunk in sizes) >= max(need[chunk] for chunk in others)
    assert max(need[chunk] for chunk in sizes) > min(need[chunk] for chunk in others)


def test_what_fewer_questions_need_makes_room_and_equal_need_stays(tmp_path: Path) -> None:
    root, place = letters(tmp_path), Near(tmp_path, top_k=1)
    first = ("--budget", str(SMALL), "--queries", log_of(tmp_path, [f"Where does the {ANIMALS[0]} sleep?"]))
    place.run(str(root), *first)
    before = place.sizes()
    assert place.run(str(root), *first)["dropped"] == 0
    asked = [f"Where does the {animal} sleep?" for animal in ANIMALS[-2:]]
    second = ("--budget", str(SMALL), "--queries", log_of(tmp_path, asked))
    done = place.run(str(root), *second)
    sizes = place.sizes()
    assert sum(sizes.values()) <= SMALL
    assert len(before.keys() - sizes.keys()) == done["dropped"] > 0
    wanted = _searched(place, asked, top_k=1).keys()
    assert len(wanted) == 2 and wanted <= sizes.keys()
    again = place.run(str(root), *second)
    assert (again["dropped"], again["stored"]) == (0, 0) and len(place.captured) <= CHECKED
    assert place.sizes() == sizes


def test_nothing_makes_room_for_what_does_not_fit_even_so(tmp_path: Path) -> None:
    root, place = letters(tmp_path, count=1), Near(tmp_path, top_k=1)
    place.run(str(root))
    budget = str(sum(place.sizes().values()) + 24_000)
    (root / "long.md").write_text("The whale swims. " * 25, encoding="utf-8")
    before = place.sizes()
    done = place.run(str(root), "--budget", budget, "--queries", log_of(tmp_path, ["Who saw the whale?"]))
    long = max(len(ids) for ids in place.captured)
    assert long > 150 and done["over_budget"] > 0
    assert (done["dropped"], place.sizes()) == (0, before)


@pytest.mark.parametrize(
    "line",
    [
        {"question": SPLIT},
        {"query": SPLIT, "top_k": 3},
        {"prompt": SPLIT},
        SPLIT,
        {"messages": [{"role": "system", "content": "x"}, {"role": "user", "content": SPLIT}]},
    ],
)
def test_a_log_may_be_written_in_several_ways(tmp_path: Path, line: Json | str) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(f"\n{json.dumps(line, ensure_ascii=False)}\r\n\n", encoding="utf-8-sig")
    assert read_log(log) == (SPLIT,)


@pytest.mark.parametrize(
    "line", ["{", "[]", "7", "{}", '{"question": ""}', '{"question": " "}', '{"messages": []}', '{"query": 1}']
)
def test_a_line_that_holds_no_question_is_named(tmp_path: Path, line: str) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"question": "Who?"}\n' + line + "\n", encoding="utf-8")
    with pytest.raises(Invalid, match=re.escape(f"{log}:2")) as refused:
        read_log(log)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("arguments", [("--budget", "much"), ("--budget", "0"), ("--queries", "log.jsonl")])
def test_a_budget_that_says_nothing_is_refused_in_one_line(tmp_path: Path, arguments: tuple[str, str]) -> None:
    told = Near(tmp_path).run(str(letters(tmp_path)), *arguments, status=2)
    assert "--budget" in told["error"] and len(told["error"].splitlines()) == 1
    assert not (tmp_path / "data/tenants/default/catalog.sqlite").exists()


def _killed_at(number: int) -> object:
    """`put_all` that ends it all when it is called for the n-th time."""
    put_all, calls = LmdbStore.put_all, 0

    def put(store: LmdbStore, blobs: Sequence[Blob]) -> list[Put]:
        nonlocal calls
        calls += 1
        if calls == number:
            raise Killed
        return put_all(store, blobs)

    return put


def _searched(place: Near, questions: Sequence[str], *, top_k: int) -> Counter[str]:
    """How many of the questions bring each chunk, by the service's own search."""
    counts: Counter[str] = Counter()
    with place.served() as service, service.client() as client:
        for question in questions:
            hits = good(client.post("/v1/search", json={"query": question, "top_k": top_k}))["hits"]
            counts.update(hit["chunk_id"] for hit in hits)
    return counts
