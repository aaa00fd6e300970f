"""JSON schemas that one tenant has compiled hold up nobody else's answers."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from blend.engine.sampling import LogitsProcessor
from retriever.documents import Json
from service.access.principal import Role
from service.answers.pipeline import LOOKUPS
from service.model.grammar import Grammars
from tests.service.serving import Inside, ask, in_process, settings_in

WITHIN_S = 30  # for broken products alone
HELD_UP = LOOKUPS + 2  # requests
HELD: Json = {"const": "held"}


@pytest.fixture
def inside(tmp_path: Path) -> Iterator[Inside]:
    with in_process(settings_in(tmp_path)) as served:
        yield served


def test_schemas_of_one_tenant_hold_up_no_answer_of_another(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, let_go, grammar_parser = threading.Event(), threading.Event(), Grammars.processor

    def processor(grammars: Grammars, schema: Json) -> LogitsProcessor:
        if schema == HELD:
            begun.set()
            assert let_go.wait(4 * WITHIN_S)
        return grammar_parser(grammars, schema)

    monkeypatch.setattr(Grammars, "processor", processor)
    others = inside.core.control.create_key("others", Role.READ)[1]
    with inside.client() as much, inside.client(others) as other, ThreadPoolExecutor(HELD_UP) as threads:
        other.timeout = WITHIN_S
        try:
            held = [threads.submit(ask, much, "Who?", top_k=0, sampling=as_json(HELD)) for _ in range(HELD_UP)]
            assert begun.wait(WITHIN_S)
            assert ask(other, "Who?", top_k=0, sampling={"max_tokens": 2})["answer"]
            assert ask(other, "Who?", top_k=0, sampling=as_json({"const": "free"}))["answer"] == '"free"'
            assert ask(much, "Who?", top_k=0, sampling={"max_tokens": 2})["answer"]  # its own, without a schema
        finally:
            let_go.set()
        assert [each.result()["answer"] for each in held] == ['"held"'] * len(held)


def as_json(schema: Json) -> Json:
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}
