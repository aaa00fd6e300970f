"""Answers that obey a JSON schema, and schemas that would take too much."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from random import Random

import jsonschema
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blend.engine.sampling import Sampler, Sampling
from blend.text.tokenizer import Tokenizer
from retriever.documents import Json
from retriever.readers import worker
from service.app.composition import compose_model
from service.builtin import CHECKPOINT
from service.errors import Invalid, Unavailable
from service.model.constraint import Grammars
from service.model.schema_grammar import DEEPEST, MOST_CERTAIN, MOST_CHARACTERS, MOST_OBJECTS
from service.settings import load_settings
from tests.blend.tokenizers_made import LOSSLESS, made

MOST = 600  # tokens: every schema below bounds its values
BEYOND = 37  # ids that the model predicts and its tokenizer does not have
SHORT: Json = {"type": "string", "maxLength": 12}
SCHEMAS: dict[str, Json] = {
    "flat": {
        "type": "object",
        "properties": {"name": SHORT, "age": {"type": "integer", "minimum": -5, "maximum": 150}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    "choices": {
        "type": "object",
        "properties": {
            "unit": {"enum": ["°C", "°F", 'a "quoted" one\n', None, 7]},
            "sure": {"type": "boolean"},
            "either": {"anyOf": [{"type": "null"}, SHORT, {"const": 3.5}]},
        },
        "required": ["unit", "sure", "either"],
        "additionalProperties": False,
    },
    "tree": {
        "$defs": {
            "leaf": {
                "type": "object",
                "properties": {"東京": {"type": "string", "pattern": "^[a-c]{2,4}$"}},
                "required": ["東京"],
                "additionalProperties": False,
            }
        },
        "type": "array",
        "items": {"$ref": "#/$defs/leaf"},
        "minItems": 1,
        "maxItems": 3,
    },
    "word": {"type": "string", "format": "date"},
}
BEAT_S = 0.01
SLOW: Json = {"allOf": [{"type": "integer", "multipleOf": prime} for prime in (7, 11, 13, 17, 19, 23)]}  # minutes
STEPS = 12
NUMBERS = st.sampled_from([0, 1, 7, 30, 1000, 9973, 10**5, 10**6, 10**9])
ATOMS = ["a", "[ab]", ".", "\\w", "(a|b)*a", "(a?|b?)", "x+x+", "\\p{L}"]


@cache
def tokenizer_of(kind: str) -> Tokenizer:
    if kind == "builtin":
        return compose_model(load_settings().model_copy(update={"model": str(CHECKPOINT)})).tokenizer
    return Tokenizer(made(kind))


def size_of(tokenizer: Tokenizer) -> int:
    return len(tokenizer.source) + BEYOND


@cache
def grammars(kind: str) -> Grammars:
    return Grammars(tokenizer_of(kind), size_of(tokenizer_of(kind)))


def answer(kind: str, schema: Json, *, seed: int, closing: float = 0.0) -> str | None:
    """What a model with nothing in its head answers; None if it does not come to an end."""
    tokenizer = tokenizer_of(kind)
    sampling = Sampling(temperature=1, seed=seed, processor=grammars(kind).processor(schema))
    sampler = Sampler(sampling, [], device=torch.device("cpu"))
    noise = torch.Generator().manual_seed(seed)
    size = size_of(tokenizer)
    closers = [token for token in range(size) if tokenizer.token_bytes(token) in (b'"', b"}", b"]")]
    for _ in range(MOST):
        logits = 3 * torch.randn(size, generator=noise)
        logits[closers] += closing
        token = sampler.pick(logits).token
        if token in tokenizer.stop_ids:
            return tokenizer.decode(sampler.ids[:-1])
        assert token not in tokenizer.control and tokenizer.token_bytes(token)
    return None


@pytest.mark.parametrize("kind", ["builtin", "nfkc", *LOSSLESS])
@pytest.mark.parametrize("name", SCHEMAS)
def test_any_choice_among_the_allowed_tokens_ends_in_json_that_obeys(kind: str, name: str) -> None:
    for seed in range(3):
        text = answer(kind, SCHEMAS[name], seed=seed)
        assert text is not None
        jsonschema.validate(json.loads(text), SCHEMAS[name])


@pytest.mark.parametrize("kind", ["builtin", "unigram"])
def test_an_empty_schema_is_any_object(kind: str) -> None:
    for seed in range(5):
        text = answer(kind, {}, seed=seed, closing=6)
        assert text is not None
        assert isinstance(json.loads(text), dict)


def test_a_tokenizer_that_knows_more_than_the_model_predicts_is_cut() -> None:
    tokenizer = tokenizer_of("bytes")
    size = max(tokenizer.stop_ids) + 1
    processor = Grammars(tokenizer, size).processor(SCHEMAS["flat"])
    assert processor([], torch.zeros(size)).isfinite().any()


def test_behind_the_end_only_the_end_is_allowed() -> None:
    tokenizer = tokenizer_of("bytes")
    processor = grammars("bytes").processor({"const": 7})
    seven = tokenizer.encode_text("7")
    logits = processor(seven, torch.zeros(size_of(tokenizer)))
    assert set(logits.isfinite().nonzero()[:, 0].tolist()) == tokenizer.stop_ids
    [end, *_] = tokenizer.stop_ids
    assert torch.equal(processor([*seven, end], torch.zeros(size_of(tokenizer))), logits)


def test_answers_at_the_same_time_do_not_disturb_each_other() -> None:
    processors = [grammars("bytes").processor({"enum": ["ab", "cd"]}) for _ in range(2)]
    tokenizer, size = tokenizer_of("bytes"), size_of(tokenizer_of("bytes"))
    chosen: list[list[int]] = [[], []]
    order = Random(1)
    while any(ids[-1:] != [max(tokenizer.stop_ids)] for ids in chosen):
        which = order.randrange(2)
        if chosen[which][-1:] != [max(tokenizer.stop_ids)]:
            wanted = torch.zeros(size)
            wanted[tokenizer.encode_text("ac"[which])] = 1
            chosen[which].append(int(processors[which](chosen[which], wanted).argmax()))
    assert [tokenizer.decode(ids[:-1]) for ids in chosen] == ['"ab"', '"cd"']


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "strin"}, "strin"),
        ({"$ref": "https://example.org/schema"}, "example.org"),
        ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
        ({"type": "integer", "minimum": -(10**400)}, "out of range"),
        ({"enum": []}, "Unsatisfiable"),
        ({"$ref": "#"}, "nothing fits"),
        ({"enum": [f"word {number}" for number in range(100_000)]}, "characters, at most 100,000"),
    ],
)
def test_a_schema_that_cannot_be_followed_is_refused_with_the_reason(schema: Json, reason: str) -> None:
    with pytest.raises(Invalid, match=reason) as refusal:
        grammars("bytes").processor(schema)
    assert refusal.value.field == "response_format"


def test_a_schema_of_any_depth_is_refused_and_nothing_worse() -> None:
    schema: Json = {"type": "string"}
    for _ in range(900):
        schema = {"type": "array", "items": schema}
    with pytest.raises(Invalid, match="levels"):
        grammars("bytes").processor(schema)


def test_a_vocabulary_that_cannot_write_json_is_refused() -> None:
    with pytest.raises(Invalid, match="no token"):
        Grammars(tokenizer_of("unknown"), size_of(tokenizer_of("unknown"))).processor({})


def test_a_model_whose_end_is_unknown_is_refused() -> None:
    tokenizer = tokenizer_of("bytes")
    with pytest.raises(Invalid, match="ends an answer"):
        Grammars(tokenizer, min(tokenizer.stop_ids)).processor({})


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
    ],
)
def test_what_is_too_large_is_named_with_the_remedy(schema: Json, reason: str) -> None:
    with pytest.raises(Invalid, match=reason) as refusal:
        follow(schema, seed=0)
    assert refusal.value.field == "response_format"


def test_what_is_just_small_enough_is_followed() -> None:
    for schema in (properties(MOST_OBJECTS - 2, required=True), nested(DEEPEST), {"const": "x" * 9_000}):
        follow(schema, seed=0)


@contextmanager
def read_ahead() -> Iterator[list[int]]:
    """The lengths of what the tokenizer read."""
    lengths, read = [0], Tokenizer.encode_text

    def noted(self: Tokenizer, text: str) -> list[int]:
        lengths.append(len(text))
        return read(self, text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tokenizer, "encode_text", noted)
        yield lengths


LONG: Json = {"const": "x" * 2000}
TWICE: Json = {"type": "array", "prefixItems": [{"$ref": "#/$defs/a~1b"}] * 2, "minItems": 2}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": LONG, "minItems": 50},
        {"type": "array", "items": {"type": "array", "items": {"const": "x" * 20}, "minItems": 50}, "minItems": 50},
        {"allOf": [{"type": "array", "items": LONG}, {"minItems": 50}]},
        {"type": "array", "items": {"type": "string", "pattern": "^(ab){100}$"}, "minItems": 90},
        {"type": "array", "items": {"const": 1}, "minItems": 10**6},
        {"type": "string", "pattern": "^a{20000}$"},
        {"type": "string", "pattern": "^a{100000}$"},
        {"type": "string", "pattern": "^(a{1000}){1000}$"},
        {"type": "object", "patternProperties": {"^a{20000}$": LONG}, "additionalProperties": False},
        {"type": "string", "pattern": "^a*$", "minLength": 20_000},
        {"type": "array", "prefixItems": [LONG, {"$ref": "#"}], "minItems": 2},
        {"$defs": {"a/b": LONG}, "type": "array", "prefixItems": [TWICE] * 4, "minItems": 4},
        {"anyOf": [{"const": "short"}, {"type": "array", "items": LONG, "minItems": 50}]},
    ],
)
def test_what_a_few_words_make_certain_is_followed_without_looking_ahead(schema: Json) -> None:
    with read_ahead() as lengths:
        for seed in range(3):
            follow(schema, seed=seed)
    assert max(lengths) <= MOST_CERTAIN


def test_other_threads_go_on_while_a_slow_schema_is_refused() -> None:
    with heart() as beats, pytest.raises(Invalid, match="MiB of memory to compile: use shorter") as refusal:
        grammars("bytes").processor(SLOW)
    assert len(beats) > 3 and refusal.value.field == "response_format"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(HOSTILE, st.integers(0, 9))
def test_any_schema_is_followed_or_refused_within_its_fuel(schema: Json, seed: int) -> None:
    """Without limits, some of these take hours, and some all memory."""
    with read_ahead() as lengths, suppress(Invalid):
        follow(schema, seed=seed)
    assert max(lengths) <= MOST_CERTAIN


def test_a_schema_is_not_to_blame_where_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    worker.close()
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(Unavailable, match="no process could be started"):
        grammars("bytes").processor({"type": "string"})
    assert grammars("bytes").processor({})
