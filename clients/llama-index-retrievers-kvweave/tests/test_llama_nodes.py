"""Nodes as documents of kvweave: what is registered of them."""

from datetime import date
from decimal import Decimal

import pytest
from llama_index.core.schema import ImageNode, MetadataMode, NodeRelationship, RelatedNodeInfo, TextNode

from llama_index.retrievers.kvweave.nodes import NODE_ID, REF_DOC_ID, document_of


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


def test_metadata_are_registered_as_filters_compare_them() -> None:
    metadata = {"on": date(2025, 3, 1), "price": Decimal("1.50"), "tags": {"y", "x"}}
    document = document_of(node("Body.", metadata=metadata), "c", mode=MetadataMode.NONE)
    registered = {"on": "2025-03-01", "price": 1.5, "tags": ["x", "y"], NODE_ID: "n1", REF_DOC_ID: "doc"}
    assert document and document.get("metadata") == registered


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
