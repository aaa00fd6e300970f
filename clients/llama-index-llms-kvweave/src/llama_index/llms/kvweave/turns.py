"""LlamaIndex's messages, nodes and schemas as a request to kvweave. Sends nothing."""

import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal, cast

from llama_index.core.base.llms.types import CachePoint, ChatMessage, MessageRole, TextBlock, ThinkingBlock
from llama_index.core.bridge.pydantic import BaseModel
from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore

from kvweave_client.chat_requests import ChatRequest, Reading
from kvweave_client.options import Json, LooseDocument, Message
from kvweave_client.passages import LONGEST_ID, LONGEST_TITLE, TITLE, chunk_id_of
from kvweave_client.plain import plain_text
from kvweave_client.schemas import closed

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


def asked(messages: Sequence[ChatMessage], options: Mapping[str, object]) -> ChatRequest:
    """The request of these messages. `nodes` among the options are read before the last; None leaves an option out."""
    said = {name: value for name, value in options.items() if value is not None}
    nodes = [each.node if isinstance(each, NodeWithScore) else each for each in cast(Nodes, said.pop("nodes", ()))]
    nodes = [node for node in nodes if _text(node).strip()]
    ids = [chunk_id_of(node.metadata, _text(node)) for node in nodes]
    texts = tuple(_document(node) for node in nodes)
    loose = tuple(text for text, chunk_id in zip(texts, ids, strict=True) if not chunk_id)
    read = Reading(tuple(filter(None, ids)), loose, texts)
    return ChatRequest.about([_turn(message) for message in messages], said, read=read)


def schema_format(output_cls: type[BaseModel]) -> Json:
    """A response format that makes the answer an object of this class."""
    name = re.sub(r"[^a-zA-Z0-9_-]", "_", output_cls.__name__)[:64]
    schema = closed(output_cls.model_json_schema())
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": True}}


def _turn(message: ChatMessage) -> Message:
    role = _ROLES.get(message.role)
    if role is None:
        raise ValueError(f"kvweave serves no tools: leave out messages of the role {message.role.value!r}")
    for block in message.blocks:
        if not isinstance(block, TextBlock | CachePoint | ThinkingBlock):
            raise ValueError(f"kvweave reads text only, got a block of the type {block.block_type!r}: leave it out")
    return {"role": role, "content": plain_text(message.content or "")}


def _text(node: BaseNode) -> str:
    return plain_text(node.get_content(metadata_mode=MetadataMode.LLM))


def _document(node: BaseNode) -> LooseDocument:
    document: LooseDocument = {"text": _text(node)}
    if len(node.node_id) <= LONGEST_ID:
        document["id"] = plain_text(node.node_id)
    if title := node.metadata.get(TITLE):
        document["title"] = plain_text(str(title))[:LONGEST_TITLE]
    return document
