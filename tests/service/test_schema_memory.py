"""Memory of JSON schemas: a tenant's answers have a share of it, and nobody else's count."""

from pathlib import Path

import pytest

from service.access.principal import Role
from service.answers.fair_turns import SchemaMemory
from service.errors import Exhausted
from service.model.schema_check import LEAST_BYTES, checked_grammar
from tests.service.serving import Json, ask, in_process, settings_in

LARGE: Json = {"enum": [f"value {number}" for number in range(8000)]}


def test_a_tenants_schemas_take_its_share_alone_until_their_answers_end() -> None:
    memory = SchemaMemory(100)
    with memory.held("a", 60):
        for nbytes in (41, 1000):
            with pytest.raises(Exhausted, match="this tenant's answers") as refused, memory.held("a", nbytes):
                pass
            assert refused.value.retry_after_s
        with memory.held("b", 100), memory.held("a", 40):
            pass
    with memory.held("a", 100):
        pass


def test_a_large_schema_is_counted_for_what_it_takes() -> None:
    assert checked_grammar({"type": "string"}).nbytes == checked_grammar({}).nbytes == LEAST_BYTES
    assert LEAST_BYTES < checked_grammar(LARGE).nbytes < 8 * LEAST_BYTES


def test_an_answer_counts_while_it_runs(tmp_path: Path) -> None:
    said = {"response_format": {"type": "json_schema", "json_schema": {"schema": {"const": "x"}}}}
    with in_process(settings_in(tmp_path)) as inside, inside.client() as client:
        inside.core.pipeline._schema_memory = memory = SchemaMemory(2 * LEAST_BYTES - 1)
        _, key = inside.core.control.create_key("other", Role.READ)
        for _ in range(3):
            assert ask(client, "Who?", top_k=0, sampling=said)["answer"] == '"x"'
        with memory.held("default", LEAST_BYTES), inside.client(key) as other:
            body = {"question": "Who?", "top_k": 0, "sampling": said}
            refused = client.post("/v1/query", json=body)
            assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1"), refused.text
            assert ask(client, "Who?", top_k=0, sampling={"max_tokens": 2})["answer"]
            assert ask(other, "Who?", top_k=0, sampling=said)["answer"] == '"x"'
