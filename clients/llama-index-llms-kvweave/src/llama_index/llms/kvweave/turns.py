"""LlamaIndex's messages, nodes and schemas as a request to kvweave. Sends nothing."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Literal, cast

from llama_index.core.base.llms.types import CachePoint, ChatMessage, MessageRole, TextBlock, ThinkingBlock
from llama_index.core.bridge.pydantic import BaseModel
from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore

from kvweave_client.options import ChatOptions, Json, LooseDocument, Message

CHUNK_ID: Final = "kvweave_chunk_id"  # as the retriever of llama-index-retrievers-kvweave notes it
DIGEST: Final = "kvweave_digest"
TITLE: Final = "kvweave_title"

_LONGEST_NAME, _LONGEST_TITLE = 1024, 1000  # letters
_Role = Literal["system", "developer", "user", "assistant"]
_ROLES: Final[dict[MessageRole, _Role]] = {
    MessageRole.SYSTEM: "system",
    MessageRole.DEVELOPER: "developer",
    MessageRole.USER: "user",
    MessageRole.ASSISTANT: "assistant",
    MessageRole.CHATBOT: "assistant",
    MessageRole.MODEL: "assistant",
}

Nodes = Sequence[NodeWithScore | BaseNode]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for an answer. `without_ids`: the same with the text of nodes, for chunks that are gone meanwhile."""

    turns: list[Message]
    options: ChatOptions
    without_ids: ChatOptions | None = None


def asked(messages: Sequence[ChatMessage], options: Mapping[str, object]) -> Asked:
    """The request of these messages. `nodes` among the options are read before the last; None leaves an option out."""
    said = {name: value for name, value in options.items() if value is not None}
    nodes = [each.node if isinstance(each, NodeWithScore) else each for each in cast(Nodes, said.pop("nodes", ()))]
    given = cast(ChatOptions, said)
    turns = [_turn(message) for message in messages]
    nodes = [node for node in nodes if _text(node).strip()]
    if not nodes:
        return Asked(turns, given)
    named = [node for node in nodes if _is_chunk(node)]
    loose = [node for node in nodes if not _is_chunk(node)]
    if not named:
        return Asked(turns, _with_texts(given, loose))
    ids = [*(given.get("chunk_ids") or []), *(str(node.metadata[CHUNK_ID]) for node in named)]
    short = _with_texts(given, loose).copy()
    short["chunk_ids"] = [*dict.fromkeys(ids)]
    return Asked(turns, short, _with_texts(given, nodes))


def schema_format(output_cls: type[BaseModel]) -> Json:
    """A response format that makes the answer an object of this class."""
    name = re.sub(r"[^a-zA-Z0-9_-]", "_", output_cls.__name__)[:64]
    schema = _closed(output_cls.model_json_schema())
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": True}}


def _closed(schema: object) -> object:
    """The schema whose objects have no fields but those named, unless the class says so: a model would go on and on."""
    if isinstance(schema, list):
        return [_closed(each) for each in cast(list[object], schema)]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(each) for name, each in cast(Json, schema).items()}
    if closed.get("type") == "object" and isinstance(closed.get("properties"), dict):
        closed.setdefault("additionalProperties", False)
    return closed


def digest_of(text: str) -> str:
    """The digest that the retriever notes: it tells whether a node still has the text that it came with."""
    return sha256(text.strip().encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _turn(message: ChatMessage) -> Message:
    role = _ROLES.get(message.role)
    if role is None:
        raise ValueError(f"kvweave serves no tools: leave out messages of the role {message.role.value!r}")
    for block in message.blocks:
        if not isinstance(block, TextBlock | CachePoint | ThinkingBlock):
            raise ValueError(f"kvweave reads text only, got a block of the type {block.block_type!r}: leave it out")
    return {"role": role, "content": message.content or ""}


def _is_chunk(node: BaseNode) -> bool:
    """Whether it is a chunk of kvweave with its own text, and no more. A node may be changed on its way."""
    return bool(node.metadata.get(CHUNK_ID)) and node.metadata.get(DIGEST) == digest_of(_text(node))


def _text(node: BaseNode) -> str:
    return node.get_content(metadata_mode=MetadataMode.LLM)


def _with_texts(options: ChatOptions, nodes: Sequence[BaseNode]) -> ChatOptions:
    texts = [*(options.get("documents") or []), *map(_document, nodes)]
    return {**options, "documents": texts} if texts else options


def _document(node: BaseNode) -> LooseDocument:
    document: LooseDocument = {"text": _text(node)}
    if len(node.node_id) <= _LONGEST_NAME and "\0" not in node.node_id:
        document["id"] = node.node_id
    if title := node.metadata.get(TITLE):
        document["title"] = str(title)[:_LONGEST_TITLE]
    return document
