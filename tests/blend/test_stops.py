"""Stop strings against a search in the whole text, for every way of cutting it."""

from hypothesis import given, settings
from hypothesis import strategies as st

from blend.engine.answer_builder import StopStrings

PIECES = st.lists(st.text("ab", max_size=3), max_size=8)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), max_size=3).map(tuple)
EXAMPLES = 600


def up_to_the_first(text: str, stops: tuple[str, ...]) -> str:
    return text[: min((text.find(stop) for stop in stops if stop in text), default=len(text))]


@settings(max_examples=EXAMPLES)
@given(PIECES, STOPS)
def test_what_leaves_is_the_text_up_to_the_first_stop_however_it_is_cut(
    pieces: list[str], stops: tuple[str, ...]
) -> None:
    watch, text = StopStrings(stops), "".join(pieces)
    left = "".join(watch.push(piece) for piece in pieces) + watch.finish()
    assert left == up_to_the_first(text, stops)
    assert watch.stopped == any(stop in text for stop in stops)


@settings(max_examples=EXAMPLES)
@given(PIECES, STOPS)
def test_no_character_waits_that_cannot_begin_a_stop(pieces: list[str], stops: tuple[str, ...]) -> None:
    watch, given_in, left = StopStrings(stops), "", ""
    for piece in pieces:
        left += watch.push(piece)
        given_in += piece
        if watch.stopped:
            break
        held = given_in.removeprefix(left)
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)
