"""What a passage is as a node, and a node as a document of kvweave. Sends nothing."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from llama_index.core.schema import (
    BaseNode,
    MetadataMode,
    NodeRelationship,
    NodeWithScore,
    ObjectType,
    RelatedNodeInfo,
    TextNode,
)

from kvweave_client import ChunkState, Source
from kvweave_client.following import is_text, name_of
from kvweave_client.options import Json, NewDocument
from kvweave_client.passages import CACHE, PREFIX, notes_of, own_metadata
from kvweave_client.plain import plain_metadata

TIER: Final = f"{PREFIX}tier"
REF_DOC_ID: Final = f"{PREFIX}ref_doc_id"
NODE_ID: Final = f"{PREFIX}node_id"

_MOST_BYTES: Final = 256 * 1024  # of a node's metadata


def nodes_of(
    hits: Sequence[Source], states: Mapping[str, ChunkState] | None, *, shown: Iterable[str] = ()
) -> list[NodeWithScore]:
    """The hits as nodes with ids of their own: LlamaIndex drops nodes of equal ids. `shown`: metadata in prompts.

    `states`: of their chunks; None where nobody asked for them.
    """
    seen: dict[str, int] = {}
    found: list[NodeWithScore] = []
    for hit in hits:
        name = str(hit.metadata.get(NODE_ID) or f"{hit.document_id}:{hit.chunk_id}")
        seen[name] = seen.get(name, 0) + 1
        node_id = name if seen[name] == 1 else f"{name}:{seen[name]}"
        node = _node(hit, node_id, told=_cache(hit, states), shown=frozenset(shown))
        found.append(NodeWithScore(node=node, score=hit.score))
    return found


def _cache(hit: Source, states: Mapping[str, ChunkState] | None) -> Json:
    if states is None:
        return {}
    state = states.get(hit.chunk_id)
    return {CACHE: state.state, TIER: state.tier} if state else {CACHE: "absent"}


def _node(hit: Source, node_id: str, *, told: Json, shown: frozenset[str]) -> TextNode:
    metadata = own_metadata(hit.metadata)
    hidden = [name for name in metadata if name not in shown]
    told = {name: value for name, value in (notes_of(hit) | told).items() if value != ""}
    ref_doc_id = str(hit.metadata.get(REF_DOC_ID, hit.document_id))
    return TextNode(
        id_=node_id,
        text=hit.text,
        metadata=metadata | told,
        excluded_llm_metadata_keys=[*hidden, *told],
        excluded_embed_metadata_keys=[*hidden, *told],
        relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=ref_doc_id, node_type=ObjectType.DOCUMENT)},
        start_char_idx=hit.start,
        end_char_idx=hit.end,
    )


def ref_doc_of(node: BaseNode) -> str:
    """The id of a node's source, as LlamaIndex's pipeline has it: a node without a source is its own."""
    return node.ref_doc_id or node.node_id


def document_of(node: BaseNode, collection: str, *, mode: MetadataMode) -> NewDocument | None:
    """A node as one chunk, its text as prompts hold it. None for what cannot be registered, such as an image."""
    text = node.get_content(metadata_mode=mode)
    name, ref_doc_id = name_of(node.node_id, collection), ref_doc_of(node)
    if not name or not text.strip() or not is_text(text) or not name_of(ref_doc_id, collection):
        return None
    metadata = plain_metadata(own_metadata(node.metadata))
    if len(json.dumps(metadata)) > _MOST_BYTES:
        metadata = {}  # filters miss it; its cache is found all the same
    metadata |= {NODE_ID: node.node_id, REF_DOC_ID: ref_doc_id}
    return NewDocument(id=name, chunks=[{"id": node.node_id, "text": text}], metadata=metadata)
