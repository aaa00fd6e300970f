"""Nodes as documents of kvweave: what is registered of them, and metadata of any kind as JSON."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_index.core.schema import ImageNode, MetadataMode, NodeRelationship, RelatedNodeInfo, TextNode

from llama_index.retrievers.kvweave.nodes import NODE_ID, REF_DOC_ID, document_of, plain

keys = st.one_of(st.text(max_size=5), st.integers(), st.none())
odd = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(),
        st.binary(max_size=5),
        st.datetimes(),
        st.uuids(),
        st.decimals(),
        st.sampled_from([np.int64(3), np.float32(0.5), np.float64("nan"), np.bool_(True), np.str_("s"), np.array([1])]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=3)),
    max_leaves=8,
)


def depth(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.dictionaries(st.text(max_size=5), odd, max_size=3))
def test_metadata_of_any_kind_are_json(metadata: dict[str, object]) -> None:
    found = plain(metadata)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    json.dumps(found, ensure_ascii=False).encode()
    assert "\\u0000" not in json.dumps(found)


class Kind(Enum):
    LETTER = "letter"


def test_values_keep_their_meaning() -> None:
    assert plain(
        {
            "at": datetime(2025, 3, 1, 12, tzinfo=UTC),
            "on": date(2025, 3, 1),
            "id": UUID(int=1),
            "path": Path("a/b"),
            "price": Decimal("1.50"),
            "kind": Kind.LETTER,
            "count": np.int64(3),
            "share": np.float64(0.5),
            "day": np.datetime64("2025-03-01"),
            "set": {1},
            "nan": float("nan"),
            "huge": 2**70,
        }
    ) == {
        "at": "2025-03-01T12:00:00+00:00",
        "on": "2025-03-01",
        "id": "00000000-0000-0000-0000-000000000001",
        "path": "a/b",
        "price": "1.50",
        "kind": "letter",
        "count": 3,
        "share": 0.5,
        "day": "2025-03-01",
        "set": [1],
        "nan": "nan",
        "huge": str(2**70),
    }


def test_metadata_that_hold_themselves_end() -> None:
    loop: dict[str, object] = {}
    loop["again"] = loop
    assert depth(plain(loop)) < 64


def node(text: str, **fields: object) -> TextNode:
    source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id="doc")}
    return TextNode.model_validate({"id_": "n1", "text": text, "relationships": source, **fields})


def test_the_text_is_that_of_prompts_with_the_metadata_that_a_model_is_shown() -> None:
    shown = node("Body.", metadata={"lang": "en", "path": "/p"}, excluded_llm_metadata_keys=["path"])
    document = document_of(shown, "c", mode=MetadataMode.LLM)
    assert document == {
        "id": "c/n1",
        "chunks": [{"id": "n1", "text": "lang: en\n\nBody."}],
        "metadata": {"lang": "en", "path": "/p", NODE_ID: "n1", REF_DOC_ID: "doc"},
    }
    bare = document_of(shown, "c", mode=MetadataMode.NONE)
    assert bare and bare.get("chunks") == [{"id": "n1", "text": "Body."}]


def test_a_node_without_a_source_is_its_own() -> None:
    document = document_of(TextNode(id_="alone", text="Body."), "c", mode=MetadataMode.LLM)
    assert document and document.get("metadata") == {NODE_ID: "alone", REF_DOC_ID: "alone"}


@pytest.mark.parametrize(
    "unfit",
    [
        node(" \n"),
        node("half \ud800"),
        node("nul \0"),
        node("Body.", id_=""),
        node("Body.", id_="n" * 1025),
        ImageNode(id_="n1", image_url="http://localhost/i.png"),
    ],
)
def test_what_cannot_be_registered_is_left_out(unfit: TextNode) -> None:
    assert document_of(unfit, "c", mode=MetadataMode.LLM) is None


def test_metadata_that_are_too_large_are_left_out_and_the_text_is_not() -> None:
    document = document_of(
        node("Body.", metadata={"all": "x" * 300_000}, excluded_llm_metadata_keys=["all"]), "c", mode=MetadataMode.LLM
    )
    assert document and document.get("metadata") == {NODE_ID: "n1", REF_DOC_ID: "doc"}
    assert document.get("chunks") == [{"id": "n1", "text": "Body."}]
