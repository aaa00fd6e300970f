"""`kvweave precompute` after any edits of a corpus, stopped anywhere: store and catalog are what a fresh run makes."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from retriever.catalog.sqlite import SqliteCatalog
from service.documents import chunk_capture, file_group
from store.lmdb.lmdb_store import LmdbStore
from tests.service.test_precompute_plans import Killed, Near, small_place

FILES = ("a.md", "b.md", "deep/c.txt", "deep/d.txt", "e.json")
LINES = ("one.jsonl", "two.jsonl")
ROWS = ("first", "second", "third")
TEXTS = ("A lamp.", "Two lamps.", "A coin. " * 8, "A river. " * 8, "The harbor. " * 30, "Signal, coin and river. " * 40)
BROKEN = ("", "  \n", "{")  # for the last, see `content_of`

texts = st.sampled_from(TEXTS)


@dataclass(frozen=True, slots=True)
class Step:
    """Edits, and a run. `writes`: None removes a file. `rows`: a row is in one file, or in none."""

    writes: dict[str, str | None]
    renames: tuple[tuple[str, str], ...]
    rows: dict[str, tuple[str, str] | None]
    killed_at: int  # which of its writes to catalog or store does not happen; 0 for none


steps = st.builds(
    Step,
    st.dictionaries(st.sampled_from(FILES), st.one_of(texts, st.none(), st.sampled_from(BROKEN)), max_size=4),
    st.lists(st.tuples(st.sampled_from(FILES[:4]), st.sampled_from(FILES[:4])), max_size=1).map(tuple),
    st.dictionaries(st.sampled_from(ROWS), st.one_of(st.tuples(st.sampled_from(LINES), texts), st.none()), max_size=2),
    st.one_of(st.just(0), st.integers(1, 40)),
)


class Edited:
    """A corpus, and what a run should make of it: what cannot be read any more stays as it was read last."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.texts: dict[str, str] = {}
        self.read: dict[str, str] = {}  # by the last run that came to its end
        self._rows: dict[str, tuple[str, str]] = {}
        self._writes = 0
        self._is_sure = True  # what a run that was killed had read, nobody knows

    def edit(self, step: Step) -> None:
        """Apply what can be applied."""
        for name, new in step.writes.items():
            if new is None:
                self.texts.pop(name, None)
            elif self._is_sure or not is_broken(name, new):
                self.texts[name] = new
        for name, new in step.renames:
            if name in self.texts and (self._is_sure or not is_broken(name, self.texts[name])):
                self.texts[new] = self.texts.pop(name)
        for row, place in step.rows.items():
            self._rows.pop(row, None)
            if place is not None:
                self._rows[row] = place
        self.lay(self.root, texts=self.texts)

    def lay(self, root: Path, *, texts: dict[str, str]) -> None:
        """Make the folder just so. What did not change keeps its time."""
        wanted = {name: content_of(name, text) for name, text in texts.items()}
        root.mkdir(parents=True, exist_ok=True)
        wanted |= {name: found for name in LINES if (found := self._lines(name))}
        for name in (*FILES, *LINES):
            path, content = root / name, wanted.get(name)
            if content is None:
                path.unlink(missing_ok=True)
            elif not path.exists() or path.read_bytes() != content:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
                self._writes += 1  # clocks are coarse
                os.utime(path, ns=(self._writes * 10**9, self._writes * 10**9))

    def ran(self, *, to_its_end: bool) -> None:
        """Know what it has read."""
        self._is_sure = to_its_end
        if to_its_end:
            known = {name: text for name, text in self.read.items() if name in self.texts}
            self.read = known | {name: text for name, text in self.texts.items() if not is_broken(name, text)}

    @property
    def is_sound(self) -> bool:
        return not any(is_broken(name, text) for name, text in self.texts.items())

    def _lines(self, name: str) -> bytes:
        rows = [{"id": row, "text": text} for row, (place, text) in sorted(self._rows.items()) if place == name]
        return "\n".join(map(json.dumps, rows)).encode()


def content_of(name: str, text: str) -> bytes:
    """As the file's format has it."""
    return json.dumps({"text": text}).encode() if name.endswith(".json") and text not in BROKEN else text.encode()


def is_broken(name: str, text: str) -> bool:
    """Whether it cannot be read, or has no text."""
    return not text.strip() or (name.endswith(".json") and text in BROKEN)


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many groups and many batches, of few files."""
    monkeypatch.setattr(chunk_capture, "BATCH_CHUNKS", 2)
    monkeypatch.setattr(file_group, "GROUP_FILES", 2)
    monkeypatch.setattr(file_group, "GROUP_TOKENS", 100)


def _whatever_was_edited(history: Sequence[Step]) -> None:
    with TemporaryDirectory() as name:
        place, corpus = small_place(Path(name) / "edited"), Edited(Path(name) / "corpus")
        for step in history:
            corpus.edit(step)
            with killed_at(step.killed_at) as killing, suppress(Killed):
                place.run(str(corpus.root), "--prune", "--empty", status=0 if corpus.is_sound else 1)
            corpus.ran(to_its_end=not killing.happened)
        place.run(str(corpus.root), "--prune", "--empty", status=0 if corpus.is_sound else 1)
        corpus.ran(to_its_end=True)
        fresh, copy = small_place(Path(name) / "fresh"), Path(name) / "as it should be" / "corpus"
        corpus.lay(copy, texts=corpus.read)
        fresh.run(str(copy))
        assert place.documents() == fresh.documents()
        compare(place, fresh)
        place.run(str(corpus.root), "--prune", "--empty", status=0 if corpus.is_sound else 1)
        assert len(place.captured) <= 1, "something is computed again"


def compare(one: Near, other: Near) -> None:
    """What is stored is the same, but that of two titles over one text another may have come first."""
    ours, theirs = one.heads(), other.heads()
    assert {chunk: head.ids_digest for chunk, head in ours.items()} == {
        chunk: head.ids_digest for chunk, head in theirs.items()
    }
    alike = [chunk for chunk, head in ours.items() if head.tail_digest == theirs[chunk].tail_digest]
    sizes, wanted = one.sizes(), other.sizes()
    assert [sizes[chunk] for chunk in alike] == [wanted[chunk] for chunk in alike]


class Killing:
    """Counts writes to catalog and store, and ends it all before one of them and every one behind it."""

    def __init__(self, at: int) -> None:
        self.happened = False
        self._left = at

    def count(self) -> None:
        """One more."""
        self._left -= 1
        if self.happened or self._left == 0:
            self.happened = True
            raise Killed


@contextmanager
def killed_at(number: int) -> Iterator[Killing]:
    """While it is open, every change of a catalog and every write of the store counts; with 0 nothing is killed."""
    killing = Killing(number)
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((SqliteCatalog, "change"), (LmdbStore, "put_all"), (LmdbStore, "delete")):
            patch.setattr(owner, name, _counted(getattr(owner, name), killing))
        yield killing


def _counted(act: Callable[..., object], killing: Killing) -> Callable[..., object]:
    def counted(*arguments: object, **more: object) -> object:
        killing.count()
        return act(*arguments, **more)

    return counted


SLOW = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)  # a smaller example is not worth minutes


@settings(SLOW, max_examples=6, derandomize=True, phases=UNSHRUNK)
@given(st.lists(steps, min_size=1, max_size=5))
def test_whatever_was_edited_a_run_ends_as_a_fresh_one_does(history: list[Step]) -> None:
    _whatever_was_edited(history)


@pytest.mark.long
@settings(SLOW, max_examples=300, phases=UNSHRUNK)
@given(st.lists(steps, min_size=1, max_size=8))
def test_whatever_was_edited_at_length_a_run_ends_as_a_fresh_one_does(history: list[Step]) -> None:
    _whatever_was_edited(history)


def test_a_line_that_breaks_is_told_each_time_and_its_document_stays(tmp_path: Path) -> None:
    place, path = small_place(tmp_path), tmp_path / "rows.jsonl"
    lines = [json.dumps({"id": row, "text": f"The {row} lamp."}) for row in ROWS]
    path.write_text("\n".join(lines), encoding="utf-8")
    place.run(str(path))
    path.write_text("\n".join([lines[0].replace("lamp", "coin"), "{", lines[2]]), encoding="utf-8")
    for documents in (1, 0):
        done = place.run(str(path), "--prune", status=1)
        assert (done["documents"], len(done["problems"])) == (documents, 1)
        assert place.documents().keys() == set(ROWS)
    path.write_text(lines[0], encoding="utf-8")
    assert place.run(str(path))["removed"] == 2
    assert place.documents().keys() == {ROWS[0]}


def test_nothing_is_pruned_where_a_folder_cannot_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, root = small_place(tmp_path), tmp_path / "corpus"
    (root / "deep").mkdir(parents=True)
    for name in ("a.md", "deep/b.md"):
        (root / name).write_text(f"A lamp in {name}.", encoding="utf-8")
    place.run(str(root))
    before, listed = place.documents(), Path.iterdir

    def denied(path: Path) -> Iterator[Path]:
        if path.name == "deep":
            raise PermissionError(13, "Permission denied")
        return listed(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "iterdir", denied)
        done = place.run(str(root), "--prune", status=1)
    assert (done["removed"], len(done["problems"])) == (0, 1)
    assert place.documents() == before


@pytest.mark.parametrize("together", [1, 2])
@pytest.mark.parametrize("new", [(), ("A text that waits",), ("A text that waits", "And another")])
def test_a_row_that_moves_to_another_file_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: int, new: tuple[str, ...]
) -> None:
    monkeypatch.setattr(file_group, "GROUP_FILES", together)
    place, root = small_place(tmp_path), tmp_path / "corpus"
    _rows(root / "one.jsonl", {"stays": "A coin.", "moves": "A lamp."})
    _rows(root / "two.jsonl", {"other": "A river."})
    place.run(str(root))
    _rows(root / "one.jsonl", {"stays": "A coin.", **{text: text for text in new[:1]}})
    _rows(root / "two.jsonl", {"other": "A river.", "moves": "A lamp.", **{text: text for text in new[1:]}})
    place.run(str(root))
    assert place.documents().keys() == {"stays", "moves", "other", *new}
    assert place.sizes().keys() == {chunk for chunks in place.documents().values() for chunk in chunks}


def test_a_row_that_moves_changes_and_is_still_computed_when_its_old_file_is_done_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_group, "GROUP_FILES", 1)
    place, root = small_place(tmp_path), tmp_path / "corpus"
    _rows(root / "one.jsonl", {"stays": "A coin."})
    _rows(root / "two.jsonl", {"moves": "A lamp.", "other": "A river."})
    place.run(str(root))
    _rows(root / "one.jsonl", {"stays": "A coin.", "moves": "Another lamp."})
    _rows(root / "two.jsonl", {"other": "A river."})
    assert place.run(str(root))["removed"] == 0
    assert place.documents().keys() == {"stays", "moves", "other"}
    assert place.sizes().keys() == {chunk for chunks in place.documents().values() for chunk in chunks}


def test_the_cache_of_a_text_that_moves_to_another_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_group, "GROUP_FILES", 1)
    place, root = small_place(tmp_path), tmp_path / "corpus"
    root.mkdir()
    for edit in ({"a.txt": "A lamp.", "z.txt": "A coin."}, {"a.txt": "A coin.", "b.txt": "A lamp."}):
        for name, text in edit.items():
            (root / name).write_text(text, encoding="utf-8")
        place.run(str(root))
    assert place.sizes().keys() == {chunk for chunks in place.documents().values() for chunk in chunks}


@pytest.mark.parametrize(("together", "first"), [(1, LINES[0]), (1, LINES[1]), (2, LINES[0])])
@pytest.mark.parametrize("left", [{}, {"other": "A river."}])
def test_the_text_of_a_file_goes_with_it_where_another_brings_the_same_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: int, first: str, left: dict[str, str]
) -> None:
    monkeypatch.setattr(file_group, "GROUP_FILES", together)
    place, root = small_place(tmp_path), tmp_path / "corpus"
    paths = [root / first, *(root / name for name in LINES if name != first)]
    _rows(paths[0], {"twin": "A coin.", "more": "A lamp."})
    _rows(paths[1], {"twin": "Two coins.", "other": "A river."})
    fresh = _texts(place, str(root))
    assert fresh["twin"] == ("A coin." if first == "two.jsonl" else "Two coins.")
    os.utime(root / LINES[0], ns=(10**18, 10**18))
    assert _texts(place, str(root)) == fresh
    if left:
        _rows(paths[1], left)
    else:
        paths[1].unlink()
    assert _texts(place, str(root), "--prune") == {"twin": "A coin.", "more": "A lamp.", **left}
    assert place.sizes().keys() == {chunk for chunks in place.documents().values() for chunk in chunks}


def test_a_text_whose_file_is_pruned_goes_where_no_other_was_read_and_comes_back_with_that(tmp_path: Path) -> None:
    place = small_place(tmp_path)
    for name, text in (("one", "A coin."), ("two", "Two coins.")):
        _rows(tmp_path / name / "rows.jsonl", {"twin": text})
    assert _texts(place, str(tmp_path / "one"), str(tmp_path / "two")) == {"twin": "Two coins."}
    (tmp_path / "two/rows.jsonl").unlink()
    assert _texts(place, str(tmp_path / "two"), "--prune", "--empty") == {}
    assert _texts(place, str(tmp_path / "one")) == {"twin": "A coin."}


def test_of_an_id_that_a_file_has_twice_the_last_line_serves(tmp_path: Path) -> None:
    place, path = small_place(tmp_path), tmp_path / "rows.jsonl"
    path.write_text('{"id": "twin", "text": "Old."}\n{"id": "twin", "text": "New."}\n', encoding="utf-8")
    for changed in range(3):
        os.utime(path, ns=(changed * 10**9, changed * 10**9))
        assert _texts(place, str(path)) == {"twin": "New."}
    assert len(place.sizes()) == 1


def _texts(place: Near, *arguments: str) -> dict[str, str]:
    """What serves behind a run."""
    place.run(*arguments)
    return {document: "".join(chunks) for document, chunks in place.holds()[1].items()}


def _rows(path: Path, rows: dict[str, str]) -> None:
    path.parent.mkdir(exist_ok=True)
    lines = [json.dumps({"id": row, "text": text}) for row, text in rows.items()]
    path.write_text("\n".join(lines), encoding="utf-8")
