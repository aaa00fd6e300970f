"""One service at a time on a data folder, and a move of databases that was cut off."""

import sqlite3
import stat
from contextlib import closing, suppress
from pathlib import Path

import pytest

from service.errors import AccessError
from service.truth import databases
from service.truth.databases import decide_move, finish_move, hold
from tests.service.truth.folders import child, opened, put, told


def test_a_folder_is_held_by_one_until_it_lets_go(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with hold(data):
        assert stat.S_IMODE(data.stat().st_mode) == 0o700
        with pytest.raises(AccessError, match="is in use by another service"), hold(data):
            pass
    with hold(data), hold(tmp_path / "other"):
        pass


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    with child("hold", tmp_path) as (_, answer):
        assert answer.readline() == "held\n"
        with pytest.raises(AccessError, match="is in use by another service"), hold(tmp_path):
            pass
    with hold(tmp_path):
        pass


class Killed(BaseException):
    pass


@pytest.mark.parametrize("after", range(8))
def test_a_move_that_was_killed_anywhere_is_ended_by_whoever_holds_the_folder_next(
    tmp_path: Path, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, gathered = tmp_path / "data", tmp_path / "data" / "staging"
    for folder, names in ((data, ("old", "older")), (gathered, ("new",))):
        opened(folder).close()
        for tenant in ("one", "two"):
            put(folder, tenant, *names)
    expected = told(gathered)
    steps = 0

    def killed(path: Path) -> None:
        nonlocal steps
        steps += 1
        if steps > after:
            raise Killed

    decide_move(gathered, data)
    with monkeypatch.context() as patch, suppress(Killed):
        patch.setattr(databases, "sync_folder", killed)  # called before and behind every file that moves
        finish_move(data)
    with hold(data):
        assert told(data) == expected
        assert sorted(path.name for path in data.iterdir()) == ["control.sqlite", "server.lock", "tenants"]
    finish_move(data)
    assert told(data) == expected


def test_a_log_of_the_old_file_is_not_replayed_onto_the_new_one(tmp_path: Path) -> None:
    data, gathered = tmp_path / "data", tmp_path / "data" / "staging"
    put(gathered, "one", "new")
    expected = told(gathered)
    put(data, "one", "old")
    place = data / "tenants/one/catalog.sqlite"
    with closing(sqlite3.connect(place)) as connection:
        connection.execute("INSERT INTO removed (chunk, id) VALUES (1000, 'x')")
        connection.commit()
        logs = {suffix: place.with_name(f"{place.name}{suffix}").read_bytes() for suffix in ("-wal", "-shm")}
    for suffix, content in logs.items():  # as a kill leaves them
        place.with_name(f"{place.name}{suffix}").write_bytes(content)
    assert len(logs["-wal"]) > 0
    decide_move(gathered, data)
    finish_move(data)
    assert not [path for path in place.parent.iterdir() if path != place]
    assert told(data) == expected
    with closing(sqlite3.connect(place)) as connection:
        assert connection.execute("SELECT count(*) FROM removed WHERE id = 'x'").fetchone() == (0,)
