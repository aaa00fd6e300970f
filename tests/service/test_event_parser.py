"""Server-sent events are the same however their bytes are cut."""

from hypothesis import given
from hypothesis import strategies as st

from service.event_parser import EventParser, ReceivedEvent

LINES = [b": ping", b"", b"id: 7", b'data:{"a":"\xe2\x80\xa8\xc2\x85"}', b"", b"event: x", b"data: b", b"data: c", b""]


@given(st.data(), st.sampled_from([b"\n", b"\r\n"]))
def test_events_are_the_same_however_they_are_cut(data: st.DataObject, end: bytes) -> None:
    raw = end.join([*LINES, b"data: [DONE]"])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    parser = EventParser()
    parts = [raw[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    found = [event for part in parts for event in parser.feed(part)]
    assert [*found, *parser.end()] == [
        ReceivedEvent("", b'{"a":"\xe2\x80\xa8\xc2\x85"}'),
        ReceivedEvent("x", b"b\nc"),
        ReceivedEvent("", b"[DONE]"),
    ]
