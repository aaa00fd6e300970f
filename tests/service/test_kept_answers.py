"""What is kept of answers: bounded in count, bytes and time, for each key alone."""

from sys import getsizeof

import pytest

from service.access.principal import Principal, Role
from service.answers import kept_answers
from service.answers.kept_answers import KEPT_S, KeptAnswer, KeptAnswers

ONE, OTHER = (Principal("acme", Role.READ, name) for name in ("a", "b"))


def answer(text: str = "x") -> KeptAnswer:
    return KeptAnswer(text, ("{}",))


def test_an_answer_is_kept_for_its_key_alone_and_for_its_time() -> None:
    now = [0.0]
    kept = KeptAnswers(lambda: now[0])
    kept.keep(ONE, "r", answer=answer())
    assert kept.answer(ONE, "r") == answer()
    assert kept.answer(OTHER, "r") is kept.answer(Principal("else", Role.READ, "a"), "r") is None
    now[0] = KEPT_S - 1
    assert kept.answer(ONE, "r")
    now[0] = KEPT_S
    assert kept.answer(ONE, "r") is None


def test_the_oldest_of_a_key_go_first_and_no_other_keys_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_answers, "MOST_KEPT", 3)
    kept = KeptAnswers()
    kept.keep(OTHER, "r0", answer=answer())
    for number in range(5):
        kept.keep(ONE, f"r{number}", answer=answer())
    assert [bool(kept.answer(ONE, f"r{number}")) for number in range(5)] == [False, False, True, True, True]
    assert kept.answer(OTHER, "r0")


def test_bytes_are_bounded_for_a_key_and_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    size = answer("x" * 1000).nbytes
    assert size > getsizeof("x" * 1000)
    monkeypatch.setattr(kept_answers, "MOST_KEPT_BYTES", 3 * size)
    monkeypatch.setattr(kept_answers, "ALL_KEPT_BYTES", 4 * size)
    kept = KeptAnswers()
    for number in range(5):
        kept.keep(ONE, f"r{number}", answer=answer("x" * 1000))
    assert [bool(kept.answer(ONE, f"r{number}")) for number in range(5)] == [False, False, True, True, True]
    for number in range(2):
        kept.keep(OTHER, f"r{number}", answer=answer("x" * 1000))
    assert kept.answer(OTHER, "r0") and kept.answer(OTHER, "r1"), "the key with the most gives way"
    assert [bool(kept.answer(ONE, f"r{number}")) for number in range(2, 5)] == [False, True, True]
    kept.keep(OTHER, "long", answer=answer("x" * 4000))
    assert kept.answer(OTHER, "long") is None and kept.answer(OTHER, "r0")


def test_what_is_forgotten_makes_room() -> None:
    kept = KeptAnswers()
    for _ in range(2):
        kept.keep(ONE, "r", answer=answer())
        kept.forget(ONE, "r")
        kept.forget(OTHER, "r")
        assert kept.answer(ONE, "r") is None
