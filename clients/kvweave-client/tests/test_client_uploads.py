"""Files on their way: what arrives is what was there, however often it is sent, and never all of it in memory."""

import tracemalloc
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvweave_client as kv
from clients.tests import canned
from clients.tests.scripted import Scripted, end, reply, send
from kvweave_client.uploads import Multipart

# Of its own generators, when an upload is left under trio.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator 'http(x|core).*:ResourceWarning")

Connect = Callable[..., Any]

BIG = 48 << 20
ACCEPTED = send(reply(canned.ACCEPTED))

# Cs: cannot be encoded. Cc: no place in a header.
NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1).filter(str.strip)


def received(body: bytes, content_type: str) -> tuple[dict[str, bytes], list[tuple[str, bytes]]]:
    """Fields and files, as the service's own parser reads them."""
    multipart = pytest.importorskip("python_multipart")
    fields: dict[str, bytes] = {}
    files: list[tuple[str, bytes]] = []

    def on_file(file: Any) -> None:  # noqa: ANN401
        file.file_object.seek(0)
        files.append((file.file_name.decode(), file.file_object.read()))
        file.close()

    multipart.parse_form(
        {"Content-Type": content_type.encode(), "Content-Length": str(len(body)).encode()},
        BytesIO(body),
        lambda field: fields.update({field.field_name.decode(): field.value or b""}),
        on_file,
    )
    return fields, files


@given(
    fields=st.dictionaries(st.sampled_from(["collection", "metadata"]), st.text(st.characters(codec="utf-8"))),
    files=st.lists(st.tuples(NAMES, st.binary()), min_size=1, max_size=4),
)
def test_what_is_sent_is_read_back(fields: dict[str, str], files: list[tuple[str, bytes]]) -> None:
    body = Multipart([kv.File(content, name) for name, content in files], list(fields.items()))
    sent = b"".join(body.pieces())
    assert len(sent) == body.length
    assert b"".join(body.pieces()) == sent
    found, arrived = received(sent, body.content_type)
    assert found == {name: value.encode() for name, value in fields.items()}
    assert arrived == files


@pytest.mark.parametrize("name", ["a\nb.md", "a\r.md", "a\0.md", "\ud800.md", "", " "])
def test_a_name_that_no_header_can_hold_is_refused(name: str) -> None:
    with pytest.raises(kv.RequestError, match="give the file another one"):
        Multipart([kv.File(b"x", name)])


def test_progress_only_grows_and_ends_at_the_total(connect: Connect, server: Scripted, tmp_path: Path) -> None:
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for file in files:
        file.write_bytes(bytes(1_000_000))
    server.script(send(reply({"detail": "busy"}, status=503, Retry_After="0")), end(), ACCEPTED)
    told: list[tuple[int, int]] = []
    connect(server.base_url).do("upload_files", files, progress=lambda sent, total: told.append((sent, total)))
    sent = [each for each, _ in told]
    assert sent == sorted(set(sent))
    assert {total for _, total in told} == {sent[-1]} == {len(server.requests[-1].body)}


def test_what_is_sent_again_is_sent_whole(connect: Connect, server: Scripted, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"Mira keeps a cat." * 50_000)
    server.script(end(reply({"detail": "busy"}, status=429, Retry_After="0")).unread(), end(), ACCEPTED)
    connect(server.base_url).do("upload_files", [file], collection="pets", metadata={"n": 1})
    lost, last = server.requests[-2:]
    assert lost == last
    fields, files = received(last.body, last.headers["content-type"])
    assert fields == {"collection": b"pets", "metadata": b'{"n":1}'}
    assert files == [("a.txt", file.read_bytes())]


def test_a_large_file_is_never_in_memory(connect: Connect, server: Scripted, tmp_path: Path) -> None:
    file = tmp_path / "big.txt"
    with file.open("wb") as opened:
        opened.truncate(BIG)
    server.script(ACCEPTED.forgetting())
    caller = connect(server.base_url)
    tracemalloc.start()
    try:
        caller.do("upload_files", [file])
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < BIG / 8


def grow(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"and more")


def shrink(file: Path) -> None:
    file.write_bytes(b"")


CHANGES: dict[str, Callable[[Path], None]] = {"grows": grow, "shrinks": shrink, "vanishes": Path.unlink}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_under_way_is_an_error(
    connect: Connect, server: Scripted, *, tmp_path: Path, change: str
) -> None:
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    for file in (first, second):
        file.write_bytes(bytes(600_000))
    changes = [CHANGES[change]]

    def progress(sent: int, total: int) -> None:
        if changes:
            changes.pop()(second)

    server.script(ACCEPTED)
    with pytest.raises(kv.RequestError, match=r"b\.txt"):
        connect(server.base_url).do("upload_files", [first, second], progress=progress)


@pytest.mark.parametrize("what", ["missing", "folder"])
def test_what_is_no_file_is_refused_before_anything_is_sent(
    connect: Connect, server: Scripted, *, tmp_path: Path, what: str
) -> None:
    place = tmp_path if what == "folder" else tmp_path / "gone.txt"
    with pytest.raises(kv.RequestError, match="is no file" if what == "folder" else "cannot be read"):
        connect(server.base_url).do("upload_files", [place])
    assert server.requests == []


@pytest.mark.parametrize("files", ["a.txt", Path("a.txt"), kv.File(b"x", "a.txt"), []])
def test_one_file_is_no_list_of_files(files: Any) -> None:  # noqa: ANN401
    with kv.Client() as client, pytest.raises(kv.RequestError, match="takes a list of files"):
        client.upload_files(files)


def test_text_is_no_content_of_a_file() -> None:
    with pytest.raises(kv.RequestError, match=r"a\.txt: its content must be bytes or a Path, got str"):
        kv.File("text", "a.txt")  # type: ignore[arg-type]


def test_what_progress_raises_ends_the_upload(connect: Connect, server: Scripted) -> None:
    def progress(sent: int, total: int) -> None:
        raise KeyError(sent)

    server.script(ACCEPTED)
    with pytest.raises(KeyError):
        connect(server.base_url).do("upload_files", [kv.File(b"x", "a.txt")], progress=progress)
