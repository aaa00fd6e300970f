"""Schemas that are made to be slow or large: each is refused with what is too large, or cheap to follow."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blend.engine.sampling import Sampler, Sampling
from retriever.documents import Json
from retriever.readers import worker
from service.errors import Invalid, Unavailable
from service.model.schema_check import DEEPEST, MOST_CHARACTERS, MOST_OBJECTS
from tests.service.openai.test_grammar import grammars, size_of, tokenizer_of

BEAT_S = 0.01
SLOW: Json = {"allOf": [{"type": "integer", "multipleOf": prime} for prime in (7, 11, 13, 17, 19, 23)]}  # minutes
STEPS = 12
NUMBERS = st.sampled_from([0, 1, 7, 30, 1000, 9973, 10**5, 10**6, 10**9])
ATOMS = ["a", "[ab]", ".", "\\w", "(a|b)*a", "(a?|b?)", "x+x+", "\\p{L}"]


def properties(count: int, value: Json | None = None, *, required: bool = False) -> Json:
    names = [f"p{number}" for number in range(count)]
    closed: Json = {"type": "object", "properties": dict.fromkeys(names, value or {"type": "string"})}
    return {**closed, "additionalProperties": False, "required": names if required else []}


def nested(levels: int) -> Json:
    schema: Json = {}
    for _ in range(levels - 1):
        schema = {"items": schema}
    return schema


@st.composite
def pattern(draw: st.DrawFn) -> str:
    text = draw(st.sampled_from(ATOMS))
    for _ in range(draw(st.integers(1, 3))):
        text = f"({text}){{{draw(NUMBERS) % 1001}}}" + draw(st.sampled_from(["", *ATOMS]))
    return f"^{text}$"


LEAVES = st.one_of(
    pattern().map(lambda text: {"type": "string", "pattern": text}),
    NUMBERS.map(lambda length: {"type": "string", "minLength": length}),
    NUMBERS.map(lambda length: {"type": "string", "maxLength": length}),
    NUMBERS.map(lambda number: {"type": "integer", "multipleOf": number}),
    NUMBERS.map(lambda count: {"enum": [f"{'word' * 9} {number}" for number in range(count % 3001)]}),
    NUMBERS.map(lambda length: {"const": "x" * (length % 100_001)}),
    st.integers(0, 400).map(lambda count: properties(count, {"$ref": "#"})),
)
HOSTILE = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(inner, NUMBERS).map(lambda of: {"type": "array", "items": of[0], "minItems": of[1]}),
        st.tuples(inner, NUMBERS).map(lambda of: {"type": "array", "items": of[0], "maxItems": of[1]}),
        inner.map(lambda each: {"type": "array", "items": each, "uniqueItems": True}),
        st.lists(inner, min_size=1, max_size=3).map(lambda each: {"anyOf": [*each, *each]}),
        st.lists(inner, min_size=1, max_size=3).map(lambda each: {"allOf": each}),
        st.tuples(st.integers(1, 60), inner).map(lambda of: properties(*of)),
    ),
    max_leaves=4,
)


@contextmanager
def heart() -> Iterator[list[float]]:
    """The times at which another thread of this process had its turn."""
    beats, over = [time.perf_counter()], threading.Event()

    def beat() -> None:
        while not over.wait(BEAT_S):
            beats.append(time.perf_counter())

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield beats
    finally:
        over.set()
        thread.join()


def follow(schema: Json, *, seed: int) -> None:
    """Some steps of an answer by a model with nothing in its head."""
    sampling = Sampling(temperature=1, seed=seed, processor=grammars("bytes").processor(schema))
    sampler = Sampler(sampling, [], device=torch.device("cpu"))
    for _ in range(STEPS):
        if sampler.pick(torch.zeros(size_of(tokenizer_of("bytes")))).token in tokenizer_of("bytes").stop_ids:
            return


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (properties(5000), "5,002 objects .* at most 1,000 are taken: ask for less"),
        (nested(DEEPEST + 1), "101 levels, at most 100"),
        ({"const": "x" * MOST_CHARACTERS}, "characters, at most 100,000"),
        ({"const": 10**400_000}, "characters, at most 100,000"),
        (SLOW, "s of processor time or .* MiB of memory to compile: use shorter"),
        ({"type": "string", "pattern": "^(a{1000}){1000}$"}, "; use shorter patterns"),
        ({"type": "string", "pattern": "^a{100000}$"}, "too many .*; use shorter patterns"),
        ({"type": "array", "items": {"const": 1}, "minItems": 10**6}, "Too many items .*; use shorter patterns"),
    ],
)
def test_what_is_too_large_is_named_with_the_remedy(schema: Json, reason: str) -> None:
    with pytest.raises(Invalid, match=reason) as refusal:
        follow(schema, seed=0)
    assert refusal.value.field == "response_format"


def test_what_is_just_small_enough_is_followed() -> None:
    for schema in (properties(MOST_OBJECTS - 2, required=True), nested(DEEPEST), {"const": "x" * 9_000}):
        follow(schema, seed=0)


def test_other_threads_go_on_while_a_slow_schema_is_refused() -> None:
    with heart() as beats, pytest.raises(Invalid):
        grammars("bytes").processor(SLOW)
    assert len(beats) > 3


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(HOSTILE, st.integers(0, 9))
def test_any_schema_is_followed_or_refused_within_its_fuel(schema: Json, seed: int) -> None:
    """That it returns is what is tested: without limits, some of these take hours."""
    with suppress(Invalid):
        follow(schema, seed=seed)


def test_a_schema_is_not_to_blame_where_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    worker.close()
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(Unavailable, match="no process could be started"):
        grammars("bytes").processor({"type": "string"})
    assert grammars("bytes").processor({})
