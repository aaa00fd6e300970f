"""`kvweave precompute` and where a corpus lies: which file is which, `--prune`, and object storage."""

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import obstore
import pytest

from tests.servers.s3 import moto_server
from tests.service.test_precompute_plans import Near, small_place


def written(path: Path, text: str) -> Path:
    """A file of that text, all of one time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    os.utime(path, ns=(10**18, 10**18))
    return path


def texts(place: Near) -> dict[str, str]:
    return {document: "".join(chunks) for document, chunks in place.holds()[1].items()}


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    for name in ("a.md", "b.md", "deep/c.txt"):
        written(folder / name, f"A lamp in {name}.")
    return folder


def test_prune_deletes_only_within_what_its_arguments_name(tmp_path: Path, docs: Path) -> None:
    place, notes = small_place(tmp_path), written(tmp_path / "notes/d.md", "A note.").parent
    place.run(str(docs), str(notes))
    for arguments in ([f"{docs}/*.md"], [f"{docs}/**/*.txt"], [str(notes)], [str(docs / "a.md")], [str(docs / "deep")]):
        assert place.run(*arguments, "--prune")["removed"] == 0
    (docs / "a.md").unlink()
    (docs / "deep/c.txt").rename(docs / "deep/e.txt")
    assert place.run(str(notes), f"{docs}/*/*.md", str(docs / "b.md"), "--prune", status=2)
    assert place.run(str(notes), str(docs / "b.md"), "--prune")["removed"] == 0
    assert place.run(f"{docs}/*.md", "--prune")["removed"] == 1
    assert place.run(str(docs), "--prune")["removed"] == 1
    assert texts(place).keys() == {"docs/b.md", "docs/deep/e.txt", "notes/d.md"}


def test_what_is_skipped_in_a_folder_is_named(tmp_path: Path, docs: Path) -> None:
    skipped = [
        written(docs / name, "x") for name in (".hidden.md", "deep/.git/x.md", "1.png", "2.png", "3.png", "4.png")
    ]
    skipped[1] = skipped[1].parent
    told, said = small_place(tmp_path).command("precompute", str(docs), "--dry-run", "--json")
    event = json.loads(told.splitlines()[0])
    assert event["event"] == "skipped" and sorted(event["paths"]) == sorted(map(str, skipped))
    _, said = small_place(tmp_path).command("precompute", str(docs), "--dry-run")
    assert f"skipped, hidden: {skipped[0]}, {skipped[1]}\n" in said
    assert f"skipped, the suffix '.png' is unknown: {skipped[2]}, {skipped[3]}, {skipped[4]} and 1 more\n" in said


def test_a_file_that_is_none_of_its_format_is_named_and_hinders_no_other(tmp_path: Path, docs: Path) -> None:
    written(docs / "staff.csv", "Name,Born\nAda,1815\n")
    written(docs / "broken.docx", "no zip")
    written(docs / "ids.jsonl", json.dumps({"id": "x" * 3000, "text": "x"}) + '\n{"id": "fine", "text": "A line."}')
    deep = written(docs / "/".join(["x" * 250] * 5) / "a.md", "Its path is too long for an id.")
    written(docs / "node_modules/x/readme.md", "A tool's.")
    place = small_place(tmp_path)
    told, _ = place.command("precompute", str(docs), "--json", status=1)
    done = json.loads(told.splitlines()[-1])
    assert [(each["place"], each["reason"].rpartition(" ")[2]) for each in done["problems"]] == [
        (str(docs / "broken.docx"), "anew"),
        (f"{docs / 'ids.jsonl'}:1", "another"),
        (f"docs/{deep.relative_to(docs)}", "another"),
    ]
    assert texts(place)["docs/staff.csv"] == "- Name: Ada; Born: 1815" and texts(place)["fine"] == "A line."
    assert len(texts(place)) == 5


def test_a_run_says_first_what_a_megabyte_costs(tmp_path: Path, docs: Path) -> None:
    written(docs / "a.md", "A lamp stands in the hall, and two more are kept below the stairs. " * 20)
    place = small_place(tmp_path)
    first, *_, last = [json.loads(line) for line in place.command("precompute", str(docs), "--json")[0].splitlines()]
    assert first["event"] == "cost" and 100_000 < first["tokens"] < 1_000_000
    assert first["nbytes"] / first["tokens"] == pytest.approx(last["nbytes"] / last["tokens"], rel=0.5)
    again = place.command("precompute", str(docs), "--json")[0]
    assert '"cost"' not in again, "nothing is new"


def test_a_folder_without_files_is_emptied_on_demand_alone(tmp_path: Path, docs: Path) -> None:
    place, notes = small_place(tmp_path), written(tmp_path / "notes/d.md", "A note.").parent
    place.run(str(docs), str(notes))
    docs.rename(tmp_path / "unmounted")
    docs.mkdir()
    for more in ([], ["--dry-run"]):
        told = place.run(str(docs), str(notes), "--prune", *more, status=2)["error"]
        assert "docs holds no file, where 3 were" in told and "--empty" in told
    assert len(texts(place)) == 4
    assert place.run(str(docs), str(notes), "--prune", "--empty")["removed"] == 3
    assert texts(place).keys() == {"notes/d.md"}


def test_what_is_pruned_is_listed_first_and_by_a_dry_run_too(tmp_path: Path, docs: Path) -> None:
    place = small_place(tmp_path)
    place.run(str(docs))
    (docs / "a.md").unlink()
    for more in (["--dry-run"], []):
        assert "docs/a.md" in texts(place)
        told, _ = place.command("precompute", str(docs), "--prune", *more)
        assert told.startswith("gone, to be deleted: docs/a.md, 1 document\n")
    assert "docs/a.md" not in texts(place)
    (docs / "b.md").unlink()
    told, _ = place.command("precompute", str(docs), "--prune", "--json")
    assert json.loads(told.splitlines()[0]) == {"event": "prune", "gone": ["docs/b.md"]}


def test_folders_of_one_name_are_told_apart_and_keep_their_ids_where_they_move(tmp_path: Path) -> None:
    place, old, new = small_place(tmp_path), tmp_path / "old", tmp_path / "new"
    for folder, text in (("a", "A lamp."), ("b", "A coin.")):
        written(old / folder / "docs/x.md", text)
        written(old / folder / "docs/y.md", f"{text} {text}")
        place.run(str(old / folder / "docs"))
    found = {
        "docs/x.md": "A lamp.",
        "docs/y.md": "A lamp. A lamp.",
        "b/docs/x.md": "A coin.",
        "b/docs/y.md": "A coin. A coin.",
    }
    assert texts(place) == found
    assert place.run(str(old / "b/docs"), str(old / "a/docs"))["unchanged"] == 4
    old.rename(new)
    written(new / "b/docs/x.md", "A king.")
    (new / "b/docs/y.md").rename(new / "b/docs/z.md")
    done = place.run(str(new / "b/docs"), "--prune")
    assert (done["documents"], done["removed"]) == (2, 1)
    found["b/docs/x.md"], found["b/docs/z.md"] = "A king.", found.pop("b/docs/y.md")
    assert place.run(str(new / "a/docs"), "--prune")["removed"] == 0
    assert texts(place) == found and not place.captured[1:]
    assert place.run(str(new / "b/docs"), str(new / "a/docs"))["unchanged"] == 4


def test_another_folder_takes_no_place_of_one_that_is_gone(tmp_path: Path) -> None:
    place = small_place(tmp_path)
    for folder in ("a", "b"):
        written(tmp_path / folder / "docs/x.md", f"A lamp of {folder * 9}.")
    place.run(str(tmp_path / "a/docs"))
    (tmp_path / "a").rename(tmp_path / "elsewhere")
    written(tmp_path / "b/docs/x.md", "Another lamp.")
    assert place.run(str(tmp_path / "b/docs"), "--prune")["removed"] == 0
    assert texts(place).keys() == {"docs/x.md", "b/docs/x.md"}


def test_a_pattern_inside_a_folder_makes_no_twins(tmp_path: Path, docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = small_place(tmp_path)
    monkeypatch.chdir(docs)
    place.run(".", "*.md")
    written(docs / "new.md", "Another lamp.")
    for arguments in (["*.md"], ["deep/*"], ["a.md"], ["deep"], ["**/*.md"]):
        place.run(*arguments, "--prune")
    monkeypatch.chdir("/")
    assert place.run(str(docs))["unchanged"] == 4
    assert texts(place).keys() == {"docs/a.md", "docs/b.md", "docs/new.md", "docs/deep/c.txt"}


def test_files_of_an_older_catalog_keep_their_ids(tmp_path: Path, docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, path = small_place(tmp_path), tmp_path / "data/tenants/default/catalog.sqlite"
    place.run(str(docs))
    before = texts(place)

    def aged() -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE sources SET base = ''")

    aged()
    written(docs / "a.md", "A king in a.md.")
    monkeypatch.chdir(docs)
    assert place.run("*.md")["documents"] == 1
    aged()
    (docs / "b.md").unlink()
    done = place.run(str(docs), "--prune")
    assert (done["documents"], done["removed"], done["stored"]) == (0, 1, 0)
    assert place.run(str(docs))["unchanged"] == 2
    assert texts(place) == {"docs/a.md": "A king in a.md.", "docs/deep/c.txt": before["docs/deep/c.txt"]}


def test_a_folder_in_object_storage_is_read_as_one_on_disk_is(tmp_path: Path) -> None:
    with moto_server() as server:
        bucket = server.connect("docs")
        for name, content in {"a.md": b"The lamp a.", "deep/b.csv": b"Name,Born\nAda,1815\n", "c.png": b"x"}.items():
            obstore.put(bucket, name, content)
        obstore.put(bucket, ".git/x.md", b"hidden")
        place, url, base = small_place(tmp_path), server.url("docs"), f"s3://{server.bucket}/docs"
        done = place.run(url)
        assert texts(place) == {f"{base}/a.md": "The lamp a.", f"{base}/deep/b.csv": "- Name: Ada; Born: 1815"}
        assert "secret" not in json.dumps(done)
        assert place.run(url)["unchanged"] == 2
        obstore.delete(bucket, ["a.md"])
        assert place.run(url, "--prune")["removed"] == 1
        assert texts(place).keys() == {f"{base}/deep/b.csv"}
