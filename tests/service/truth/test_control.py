"""Keys, quotas and the switch, over a real file that others have open too."""

import hmac
import os
import sqlite3
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retriever.documents import Json
from service.access.principal import Principal, Role
from service.errors import AccessError, Unavailable
from service.truth import control as module
from service.truth import control_file
from service.truth.control import BlendingSwitch, Control, Quota
from service.truth.control_file import STEPS
from tests.service.truth.folders import child, opened


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def control(data: Path) -> Iterator[Control]:
    with closing(opened(data)) as found:
        yield found


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# Keys


def test_a_key_is_known_with_all_that_it_carries_and_listed_without_what_lets_anybody_in(control: Control) -> None:
    bound = {"team": {"$in": ["law", "tax"]}, "secret": False}
    entry, key = control.create_key("acme", Role.WRITE, bound=bound, per_minute=7, note="for Anna")
    other, _ = control.create_key("other", Role.READ)
    assert control.identify(key) == Principal("acme", Role.WRITE, entry.id, bound, 7)
    assert control.keys("acme") == [entry] and control.keys() == [entry, other]
    assert key.split("_", 2)[2] not in repr(control.keys())


def test_what_other_processes_create_and_revoke_binds_at_once(data: Path, control: Control) -> None:
    entry, key = control.create_key("acme", Role.ADMIN, bound={"a": 1}, per_minute=3)
    with child("identify", data) as (ask, answer), closing(opened(data)) as third:

        def asked(text: str) -> str:
            ask.write(f"{text}\n")
            ask.flush()
            return answer.readline().strip()

        assert answer.readline() == "ready\n"
        for _ in range(3):  # the first answer is read, the others are remembered
            assert asked(key) == "acme admin {'a': 1} 3"
            assert third.identify(key) and control.identify(key)
        later, late_key = third.create_key("late", Role.READ)
        assert asked(late_key) == "late read None None" and control.identify(late_key)
        assert control.revoke_key(entry.id)
        assert asked(key) == "None" and third.identify(key) is None and control.identify(key) is None
        assert third.revoke_key(later.id)
        assert asked(late_key) == "None" and control.identify(late_key) is None
        assert not control.revoke_key(later.id) and not control.revoke_key("unknown")
    listed = control.keys()
    assert [each.revoked is not None for each in listed] == [True, True]


def test_no_thread_gets_in_after_a_revocation_has_returned(control: Control) -> None:
    keys = [control.create_key("acme", Role.READ) for _ in range(30)]
    revoked: set[str] = set()
    late: list[str] = []
    done = threading.Event()

    def keep_asking() -> None:
        while not done.is_set():
            for entry, key in keys:
                before = entry.id in revoked
                if control.identify(key) is not None and before:
                    late.append(entry.id)

    threads = [threading.Thread(target=keep_asking) for _ in range(3)]
    for thread in threads:
        thread.start()
    for entry, _ in keys:
        control.revoke_key(entry.id)
        revoked.add(entry.id)
    done.set()
    for thread in threads:
        thread.join()
    assert late == [] and all(control.identify(key) is None for _, key in keys)


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Control, str]]:
    with closing(opened(tmp_path_factory.mktemp("known") / "data")) as control:
        yield control, control.create_key("acme", Role.ADMIN)[1]


@given(place=st.integers(0, 200), other=st.sampled_from("0aZ_- \n\0é"), cut=st.integers(0, 64))
def test_a_key_with_one_wrong_letter_or_less_of_it_is_no_key(
    known: tuple[Control, str], place: int, other: str, cut: int
) -> None:
    control, key = known
    place %= len(key)
    for wrong in (key[:place] + other + key[place + 1 :], key[:place] + other + key[place:], key[:-1][:cut], key * 2):
        assert (control.identify(wrong) is None) == (wrong != key)
    assert control.identify(key)


@given(st.text(st.characters(exclude_categories=())))
def test_no_text_is_a_key_by_chance(known: tuple[Control, str], text: str) -> None:
    control, key = known
    assert control.identify(text) is None
    assert control.identify(f"{key[:21]}{text}") is None or f"{key[:21]}{text}" == key


def test_secrets_are_compared_in_constant_time_and_nothing_else_decides(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry, key = control.create_key("acme", Role.READ)
    wrong = f"kvw_{entry.id}_{'x' * 43}"
    compared: list[tuple[bytes, bytes]] = []

    def recorded(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return hmac.compare_digest(one, other)

    with monkeypatch.context() as patch:
        patch.setattr(module, "hmac", type("Recorder", (), {"compare_digest": staticmethod(recorded)}))
        assert control.identify(wrong) is None and control.identify(key)
        assert [len(set(pair)) for pair in compared] == [2, 1] and {
            len(each) for pair in compared for each in pair
        } == {32}
        patch.setattr(module, "hmac", type("Denier", (), {"compare_digest": staticmethod(lambda *_: False)}))
        assert control.identify(key) is None


def test_no_file_holds_a_key(data: Path) -> None:
    with closing(opened(data)) as control:
        keys = [control.create_key("acme", Role.READ)[1] for _ in range(3)]
        control.revoke_key(control.keys()[0].id)
        files = [path.read_bytes() for path in data.iterdir()]
    files += [path.read_bytes() for path in data.iterdir()]
    for key in keys:
        assert key.split("_")[1].encode() in b"".join(files)
        assert not any(key[21:].encode() in content or key[21:40].encode() in content for content in files)


WRONG: list[tuple[str, dict[str, object], str]] = [
    *((name, {}, "a tenant is named") for name in ("", "Acme", "a/b", "..", "-a", "a" * 64, "a\n", "é")),
    ("acme", {"bound": {}}, "bind nothing"),
    ("acme", {"bound": {"$near": 1}}, "unknown operator"),
    ("acme", {"bound": {"a": float("inf")}}, "cannot be written as JSON"),
    ("acme", {"bound": {"a": {"$in": "x"}}}, "takes a list"),
    ("acme", {"per_minute": 0}, "a minute"),
    ("acme", {"note": "two\nlines"}, "one line"),
    ("acme", {"note": "x" * 201}, "one line"),
]


@pytest.mark.parametrize(("tenant", "options", "message"), WRONG)
def test_a_key_that_says_what_cannot_be_meant_is_not_made(
    control: Control, tenant: str, options: dict[str, object], message: str
) -> None:
    with pytest.raises(AccessError, match=message):
        control.create_key(tenant, Role.READ, **options)  # type: ignore[arg-type]
    assert control.keys() == []


def test_a_changed_filter_of_the_caller_changes_no_key(control: Control) -> None:
    teams = ["law"]
    bound: Json = {"team": {"$in": teams}}
    entry, key = control.create_key("acme", Role.READ, bound=bound)
    teams.append("tax")
    found = control.identify(key)
    assert found and found.bound == entry.bound == {"team": {"$in": ["law"]}}


# The first key


def test_the_first_start_makes_one_admin_key_that_only_its_owner_may_read(data: Path, control: Control) -> None:
    file = data / "admin.key"
    previous = os.umask(0)
    try:
        control.ensure_admin(file)
    finally:
        os.umask(previous)
    key = file.read_text().strip()
    found = control.identify(key)
    assert mode(file) == 0o600 and found and found.is_operator
    control.ensure_admin(file)
    assert file.read_text().strip() == key and len(control.keys()) == 1
    control.revoke_key(found.key_id)
    control.ensure_admin(file)
    assert len(control.keys()) == 1


def test_a_first_start_that_was_cut_off_is_made_good_by_the_next(
    data: Path, control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise InterruptedError

    file = data / "admin.key"
    with monkeypatch.context() as patch:
        patch.setattr(module, "_insert", fail)
        with pytest.raises(InterruptedError):
            control.ensure_admin(file)
    stale = file.read_text().strip()
    assert control.keys() == [] and control.identify(stale) is None
    (data / "admin.key.tmp").write_text("left by a kill")
    control.ensure_admin(file)
    assert control.identify(file.read_text().strip()) and control.identify(stale) is None


def test_the_admin_key_is_written_into_no_file_of_somebody_else(data: Path, tmp_path: Path, control: Control) -> None:
    foreign = tmp_path / "foreign"
    foreign.write_text("mine")
    foreign.chmod(0o666)
    file = data / "admin.key"
    file.symlink_to(foreign)
    (data / "admin.key.tmp").symlink_to(foreign)
    control.ensure_admin(file)
    assert foreign.read_text() == "mine" and not file.is_symlink() and mode(file) == 0o600


def test_an_admin_key_that_cannot_be_written_is_not_in_force(data: Path, control: Control) -> None:
    with pytest.raises(AccessError, match="cannot be written"):
        control.ensure_admin(data / "nowhere" / "admin.key")
    assert control.keys() == []


# Several at once


def test_processes_that_start_at_once_make_one_admin_and_lose_no_key(data: Path) -> None:
    with child("create", data, 20) as (_, one), child("create", data, 20) as (_, two), closing(opened(data)) as here:
        here.ensure_admin(data / "admin.key")
        made = [*one.read().split(), *two.read().split()]
        assert len(made) == 40 and all(here.identify(key) for key in made)
        listed = here.keys()
        assert [each.role for each in listed].count(Role.ADMIN) == 1 and len(listed) == 41
        assert here.identify((data / "admin.key").read_text().strip())


def test_threads_that_open_a_new_file_at_once_all_get_it(tmp_path: Path) -> None:
    together = threading.Barrier(8)

    def work(number: int) -> list[str]:
        keys: list[str] = []
        for turn in range(10):
            together.wait()
            with closing(opened(tmp_path / f"data{turn}")) as control:  # closing is as much of a race as opening
                control.set_quota(f"t{number}", Quota(number, None))
                keys.append(control.create_key("acme", Role.READ)[1])
        return keys

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(work, range(8)))
    for turn in range(10):
        with closing(opened(tmp_path / f"data{turn}")) as control:
            assert all(control.identify(keys[turn]) for keys in made)
            assert all(control.quota(f"t{number}") == Quota(number, None) for number in range(8))


def test_a_fingerprint_that_is_there_is_not_written_again(control: Control, data: Path) -> None:
    with closing(sqlite3.connect(data / "control.sqlite")) as other:
        control.remember_fingerprint("f1", {"dtype": "float32"})
        before = [*other.execute("PRAGMA data_version")]
        control.remember_fingerprint("f1", {"dtype": "float32"})
        assert [*other.execute("PRAGMA data_version")] == before


def test_quota_switch_and_fingerprints_are_seen_by_others_and_after_a_restart(data: Path) -> None:
    with closing(opened(data)) as one, closing(opened(data)) as two:
        assert (two.quota("acme"), two.switch(), two.fingerprints()) == (Quota(), BlendingSwitch(), {})
        one.set_quota("acme", Quota(10, None))
        one.set_switch(BlendingSwitch(enabled=False))
        assert (two.quota("acme"), two.switch(), one.switch()) == (
            Quota(10, None),
            BlendingSwitch(enabled=False),
            two.switch(),
        )
        two.set_switch(BlendingSwitch(share=0.25))
        two.remember_fingerprint("f1", {"dtype": "bfloat16"})
        two.remember_fingerprint("f1", {"dtype": "float32"})
        assert one.switch() == BlendingSwitch(share=0.25) and one.fingerprints() == {"f1": {"dtype": "float32"}}
        one.set_quota("acme", Quota(None, 5))
        assert one.tenants() == ["acme", "default"]
    with closing(opened(data)) as again:
        assert (again.quota("acme"), again.switch()) == (Quota(None, 5), BlendingSwitch(share=0.25))
        again.create_key("beta", Role.READ)
        assert again.tenants() == ["acme", "beta", "default"]


def test_a_limit_or_a_share_out_of_range_is_refused(control: Control) -> None:
    with pytest.raises(AccessError, match="quota of chunks"):
        Quota(chunks=-1)
    for share in (-0.1, 1.1, float("nan")):
        with pytest.raises(AccessError, match="share"):
            BlendingSwitch(share=share)
    with pytest.raises(AccessError, match="a tenant is named"):
        control.set_quota("../x", Quota())


# The file


def test_folder_and_files_are_the_owners_alone_whatever_they_were(data: Path) -> None:
    previous = os.umask(0)
    try:
        with closing(opened(data)) as control:
            control.create_key("acme", Role.READ)
            assert mode(data) == 0o700
            files = {path.name: mode(path) for path in data.iterdir()}
            assert files == dict.fromkeys(("control.sqlite", "control.sqlite-shm", "control.sqlite-wal"), 0o600)
    finally:
        os.umask(previous)
    data.chmod(0o755)
    (data / "control.sqlite").chmod(0o644)
    with closing(opened(data)) as control:
        assert mode(data) == 0o700 and mode(data / "control.sqlite") == 0o600 and len(control.keys()) == 1


def test_a_folder_that_others_need_is_refused_and_left_open(data: Path) -> None:
    data.mkdir()
    data.chmod(0o1777)
    with pytest.raises(AccessError, match="name one below it"):
        opened(data)
    assert mode(data) == 0o1777 and list(data.iterdir()) == []


def test_an_older_file_is_brought_forward_with_all_it_holds(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(opened(data)) as control:
        entry, key = control.create_key("acme", Role.READ)
    monkeypatch.setattr(
        control_file, "STEPS", (*STEPS, "CREATE TABLE extra (n ANY) STRICT;\nINSERT INTO extra VALUES (1);\n")
    )
    monkeypatch.setattr(control_file, "VERSION", len(STEPS) + 1)
    for _ in range(2):
        with closing(opened(data)) as control:
            assert control.keys() == [entry] and control.identify(key)
    with closing(sqlite3.connect(data / "control.sqlite")) as connection:
        assert connection.execute("SELECT n FROM extra").fetchall() == [(1,)]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (f"PRAGMA user_version = {control_file.VERSION + 1}", "use the newer"),
        ("PRAGMA application_id = 7", "another program"),
    ],
)
def test_a_newer_or_foreign_file_is_refused_and_left_as_it_is(data: Path, script: str, message: str) -> None:
    opened(data).close()
    with closing(sqlite3.connect(data / "control.sqlite")) as connection:
        connection.execute(script)
    before = (data / "control.sqlite").read_bytes()
    with pytest.raises(AccessError, match=message):
        opened(data)
    assert (data / "control.sqlite").read_bytes() == before


def test_a_damaged_file_is_unavailable_with_the_remedy_and_so_is_a_closed_one(data: Path) -> None:
    control = opened(data)
    control.close()
    control.close()
    with pytest.raises(Unavailable, match="closed"):
        control.identify(f"kvw_{'0' * 16}_{'x' * 43}")
    with pytest.raises(Unavailable, match="closed"):
        control.create_key("acme", Role.READ)
    (data / "control.sqlite").write_bytes(b"no database " * 1000)
    with pytest.raises(Unavailable, match="from a backup"):
        opened(data)


def test_a_change_that_fails_leaves_nothing_and_the_next_one_works(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry, _ = control.create_key("acme", Role.READ)
    with monkeypatch.context() as patch:
        patch.setattr(module, "new_key", lambda: (entry.id, f"kvw_{entry.id}_{'x' * 43}"))
        with pytest.raises(sqlite3.IntegrityError):
            control.create_key("acme", Role.READ)
    assert control.keys() == [entry]
    other, _ = control.create_key("acme", Role.READ)
    listed = control.keys()
    assert {each.id for each in listed} == {entry.id, other.id}
