"""Caches are shared within what the same keys see, and nowhere else. The service is whole, with the built-in model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given

from retriever.documents import Json, chunk_id
from retriever.filter_condition import condition, fields_of, fits
from service.access.domains import domain_of
from service.access.principal import Role
from service.app import composition
from service.documents import ingest
from store.key import Scope
from tests.retriever.fakes import WordEmbedder
from tests.retriever.test_filter_condition import filters, metadata
from tests.service.checkpoints import small
from tests.service.serving import Inside, good, in_process, put_in, settings_in, wait_for

SEEDS = (1, 2, 3)
STEPS = 30
TEXTS = [f"Kelo number {at} lives in Fenhaven and tends the harbour lamp at dusk." for at in range(4)]
FIELDS: dict[str, Sequence[object]] = {"team": ("a", "b"), "region": ("x", ["x", "y"]), "note": (1, 2)}
LAW: Json = {"team": "law"}


@given(metadata, metadata, filters)
def test_whoever_sees_one_document_of_a_domain_sees_all(one: Json, other: Json, bound: Json) -> None:
    fields, allowed = fields_of(bound), condition(bound)
    if domain_of(one, fields) == domain_of(other, fields):
        assert fits(allowed, collection="", metadata=one) == fits(allowed, collection="", metadata=other)


def test_what_no_filter_names_divides_nothing() -> None:
    assert domain_of({"team": "a", "note": 1}, {"team"}) == domain_of({"note": 2, "team": "a"}, {"team", "other"})
    assert domain_of({"team": "a"}, frozenset()) == domain_of({"note": 1}, {"team"}) == ""
    assert len({domain_of({"a": value}, {"a"}) for value in ("1", 1, True, None, "a\0b", ["1", 1])}) == 6


@dataclass(frozen=True, slots=True)
class Served:
    """A service, and what it computed and embedded so far."""

    inside: Inside
    computed: list[int]  # tokens of each chunk
    embedder: WordEmbedder

    @property
    def stored(self) -> set[tuple[str, str]]:
        """Chunks and domains of all blobs."""
        return {(entry.key.chunk, entry.key.domain) for entry in self.inside.core.store.entries(Scope("default"))}

    def bind(self, bound: Json) -> str:
        return self.inside.core.control.create_key("default", Role.WRITE, bound=bound)[1]


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    embedder, computed = WordEmbedder(), list[int]()
    monkeypatch.setattr(composition, "compose_embedder", lambda settings: embedder)  # pyright: ignore[reportUnknownLambdaType]
    monkeypatch.setattr(ingest, "IDLE_S", 0.05)
    with in_process(settings_in(tmp_path, store="mem://", model=small())) as inside:
        engine = inside.core.model.engine
        capture = engine.capture

        def counted(prefix: Sequence[int], chunks: Sequence[Sequence[int]], **told: Any) -> object:  # noqa: ANN401
            computed.extend(map(len, chunks))
            return capture(prefix, chunks, **told)

        monkeypatch.setattr(engine, "capture", counted)
        yield Served(inside, computed, embedder)


def document(name: str, *texts: str, **metadata: object) -> Json:
    return {"id": name, "chunks": [{"text": text} for text in texts], "metadata": metadata}


def test_an_upload_works_the_same_whether_others_hold_the_text_or_not(served: Served) -> None:
    key = served.bind(LAW)
    with served.inside.client() as operator, served.inside.client(key) as law:
        good(operator.put("/v1/collections/default", json={"in_context": False}))  # with few documents all are filler
        put_in(operator, [document("hers", *TEXTS[:3], team="hr"), document("ours", TEXTS[3], team="law")])
        for number, text in enumerate((TEXTS[0], "Nobody has put this in before.", TEXTS[1])):
            before = len(served.computed), len(served.embedder.seen)
            done = put_in(law, [document(f"mine {number}", text)])
            assert done["stored"] == 1
            assert (len(served.computed), len(served.embedder.seen)) == (before[0] + 1, before[1] + 1)
        before = len(served.computed), len(served.embedder.seen)
        put_in(law, [document("twin", TEXTS[3])])
        assert (len(served.computed), len(served.embedder.seen)) == before, "an operator's document is of its domain"
        body = {"question": "Where?", "chunk_ids": [chunk_id(TEXTS[3])], "sampling": {"max_tokens": 1}}
        for client in (law, operator):
            assert good(client.post("/v1/query", json=body))["report"]["chunks"][0]["source"] == "ram"


def drawn(chance: Random) -> Json:
    return {name: chance.choice(values) for name, values in FIELDS.items() if chance.random() < 0.6}


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_stored_is_what_the_documents_of_each_domain_hold(served: Served, seed: int) -> None:
    chance, held, bound = Random(seed), dict[str, tuple[list[str], Json]](), set[str]()

    def wanted() -> set[tuple[str, str]]:
        return {(chunk_id(text), domain_of(given, bound)) for texts, given in held.values() for text in texts}

    with served.inside.client() as client:
        for step in range(STEPS):
            name, action = f"d{chance.randrange(4)}", chance.random()
            if action < 0.45:
                held[name] = chance.sample(TEXTS, 2), drawn(chance)
                put_in(client, [document(name, *held[name][0], **held[name][1])])
            elif action < 0.65 and name in held:
                changes = {field: chance.choice([None, *FIELDS[field]]) for field in ("team", "region")}
                good(client.patch(f"/v1/documents/{name}", json={"metadata": changes}))
                merged = {**held[name][1], **changes}
                held[name] = held[name][0], {field: value for field, value in merged.items() if value is not None}
            elif action < 0.85 and name in held:
                good(client.delete(f"/v1/documents/{name}"))
                del held[name]
            elif action > 0.9 and step > 5:
                bound |= fields_of(found := {chance.choice(["team", "region"]): "a"})
                served.bind(found)
            wait_for(lambda: served.stored == wanted(), f"after step {step} all that is stored is what is held")
