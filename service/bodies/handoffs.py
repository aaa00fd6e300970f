"""Prompts that are put in place here and go on in vLLM."""

from pydantic import BaseModel, ConfigDict, Field

from service.answers.events import Report
from service.bodies.fields import Whole
from service.bodies.query import AskedQuestion, UsageOut
from service.bodies.search import SourceOut


class FuseRequest(AskedQuestion):
    """A question about the documents whose answer vLLM generates."""

    max_tokens: Whole = Field(256, ge=1, le=1_000_000, description="So much of the window is kept for the answer")


class HandoverParams(BaseModel):
    """What vLLM is told of a prompt."""

    handle: str
    tokens: int
    digest: str


class FuseAnswer(BaseModel):
    """A prompt in place. vLLM takes `ids` as `prompt`, `salt` as `cache_salt`, and `kv_transfer_params` as they are.

    Whoever knows the salt can have answers from this prompt's approximate caches: it is for this one prompt.
    """

    id: str
    ids: list[int]
    handle: str
    salt: str
    digest: str
    lease_s: float = Field(description="Seconds until the handle is forgotten")
    kv_transfer_params: dict[str, HandoverParams]
    sources: list[SourceOut]
    usage: UsageOut
    report: Report


class LayerOut(BaseModel):
    """What a layer keeps for a token."""

    index: int
    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int


class HandoffOut(BaseModel):
    """The form of a prompt that waits to be fetched. All of `tokens` but the last have keys and values."""

    tokens: int
    digest: str
    dtype: str
    layers: list[LayerOut]
    final: int = Field(description="So many layers, the first ones, are there")
    shared: str = Field(
        description="The name of a file in /dev/shm that has the layers one behind the other; empty where there is none"
    )


class HandoffQuery(BaseModel):
    """The form is told when so many layers, the first ones, are there."""

    model_config = ConfigDict(extra="forbid")

    final: int = Field(0, ge=0, lt=1 << 16)


class PartQuery(BaseModel):
    """A part of a layer: tokens, the end exclusive, and one of equal shares of the heads."""

    model_config = ConfigDict(extra="forbid")

    start: int = Field(ge=0, lt=1 << 31)
    stop: int = Field(ge=1, lt=1 << 31)
    rank: int = Field(0, ge=0, lt=1 << 16)
    ranks: int = Field(1, ge=1, lt=1 << 16)
