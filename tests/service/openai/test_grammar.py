"""Grammars: whatever is chosen among the tokens they allow ends in JSON that obeys the schema."""

import json
from functools import cache
from random import Random

import jsonschema
import pytest
import torch

from blend.engine.sampling import Sampler, Sampling
from blend.text.tokenizer import Json, Tokenizer
from service.app.composition import compose_model
from service.builtin import CHECKPOINT
from service.errors import Invalid
from service.model.grammar import Grammars
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
