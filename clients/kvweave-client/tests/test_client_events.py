"""Server-sent events: the same from the same bytes, however they are cut, and as the standard reads them."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvweave_client import events
from kvweave_client.events import EventReader, ServerEvent

# Letters that mean something, that look as if they did, and that take several bytes.
LETTERS = st.sampled_from(["a", ":", " ", "data", "event", "\ufeff", "é", "🦡", "\u2028", "\x85", "\x0b", "\0"])
OTHERS = st.sampled_from([": ping", "retry: 10", "id: 7", "other", "datas: x"])
VALUES = st.lists(LETTERS, max_size=6).map("".join)


@st.composite
def streams(draw: st.DrawFn) -> tuple[str, list[ServerEvent]]:
    """A stream in any of its spellings, and the events that it says."""
    said = draw(st.lists(st.tuples(st.sampled_from(["", "token", "done"]), st.lists(VALUES, max_size=3)), max_size=4))
    lines, expected = list[str](), list[ServerEvent]()
    for name, data in said:
        lines += [f"event:{draw(st.sampled_from(['', ' ']))}{name}"] if name else []
        lines += [f"data: {value}" for value in data]
        lines += [*draw(st.lists(OTHERS, max_size=2)), ""]
        if data:
            expected.append(ServerEvent(name or "message", "\n".join(data)))
    text = draw(st.sampled_from(["", "\ufeff"]))
    for line in lines:
        ends = ["\r", "\r\n"] if not line and text.endswith("\r") else ["\n", "\r", "\r\n"]  # \r and \n are one end
        text += line + draw(st.sampled_from(ends))
    return text, expected


def read(pieces: list[bytes]) -> list[ServerEvent]:
    reader = EventReader()
    return [event for piece in pieces for event in reader.feed(piece)]


@given(stream=streams(), cuts=st.lists(st.integers(0, 400)))
def test_any_cut_of_the_bytes_gives_the_same_events(stream: tuple[str, list[ServerEvent]], cuts: list[int]) -> None:
    text, expected = stream
    sent = text.encode()
    places = sorted({0, len(sent), *(cut for cut in cuts if cut < len(sent))})
    pieces = [sent[begin:end] for begin, end in itertools.pairwise(places)]
    assert read(pieces) == expected
    assert read([bytes([byte]) for byte in sent]) == expected


def test_an_event_is_there_with_the_byte_that_ends_it() -> None:
    for line_end in (b"\n", b"\r", b"\r\n"):
        reader = EventReader()
        assert list(reader.feed(b"data: x" + line_end)) == []
        assert list(reader.feed(line_end[:1])) == [ServerEvent("message", "x")]
        assert list(reader.feed(line_end[1:] + b"data: y" + line_end * 2)) == [ServerEvent("message", "y")]


def test_an_event_that_the_end_cuts_is_none() -> None:
    assert read([b"data: whole\n\ndata: ha"]) == [ServerEvent("message", "whole")]


@pytest.mark.parametrize("piece", [b"x" * 64, b"data: x\n" * 8, b": x\ndata: " + b"y" * 64])
def test_an_event_without_end_is_an_error(monkeypatch: pytest.MonkeyPatch, piece: bytes) -> None:
    monkeypatch.setattr(events, "LONGEST", 1000)
    with pytest.raises(OverflowError, match="longer than 1,000"):
        read([piece] * 1000)


def test_a_long_stream_of_short_events_is_no_long_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "LONGEST", 1000)
    assert len(read([b": ping\n", b"data: xyz\n\n"] * 1000)) == 1000
    assert read([b": pi", b"ng\n"] * 1000) == []
