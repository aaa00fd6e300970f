"""POST /v1/embeddings: how many texts, model and dimensions; vectors as search has of passages."""

import base64
import json
from contextlib import aclosing
from typing import Annotated, Final, Literal, cast

import numpy as np
from fastapi import Request, Response
from pydantic import BaseModel, BeforeValidator, Field

from retriever.embedders.embedding import Embedder, Vector
from service.answers.text_vectors import TextVectors
from service.api.caller import By
from service.api.fields import WHOLE, Strict, Text
from service.api.streams import client_gone, unless_gone
from service.errors import Invalid, ModelNotFound
from service.openai.models import ALIAS
from service.openai.request import Unused

MOST_INPUTS: Final = 2048
MOST_CHARACTERS: Final = 100_000  # of a text: more than any encoder reads


def _texts(given: object) -> object:
    """Checks as pydantic would, but that what is wrong with one of several texts gets a sentence of its own."""
    for place, each in enumerate(cast(list[object], given) if isinstance(given, list) else []):
        if isinstance(each, int | list):
            raise ValueError("the embedder has a tokenizer of its own: send texts, not token ids")
        if isinstance(each, str) and (not each.strip() or len(each) > MOST_CHARACTERS):
            what = "has no words" if len(each) <= MOST_CHARACTERS else f"has more than {MOST_CHARACTERS:,} characters"
            raise ValueError(f"text {place + 1} {what}: leave it out, or cut it")
    return cast(object, given)


Input = Annotated[Text, Field(max_length=MOST_CHARACTERS)]
Inputs = Annotated[list[Input], Field(min_length=1, max_length=MOST_INPUTS)]


class EmbeddingRequest(Strict):
    """Texts to make vectors of."""

    model: str = Field(examples=["default"])
    input: Annotated[Input | Inputs, BeforeValidator(_texts)] = Field(
        description="A text longer than the embedder's window is cut off there"
    )
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1, le=1_000_000), WHOLE] | None = Field(None, description="The embedder's own")
    user: Unused = None


class Embedding(BaseModel):
    """A text's vector, of unit length. In base64 the numbers are float32 in little-endian order."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(BaseModel):
    """What was read, in tokens of the embedder; of the model that answers where a server embeds."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(BaseModel):
    """The vectors, in the order of the texts."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


async def embeddings(body: EmbeddingRequest, request: Request, *, by: By) -> Response:
    vectors = by.core.text_vectors
    _check(body, vectors.embedder)
    answer = await unless_gone(request, _rendered(vectors, body, tenant=by.who.tenant))
    return client_gone() if answer is None else Response(answer, media_type="application/json")


def _check(body: EmbeddingRequest, embedder: Embedder) -> None:
    """Raises what is wrong in the light of the embedder."""
    if body.model not in (embedder.name, ALIAS):
        raise ModelNotFound(f"The model {body.model[:80]!r} makes no vectors: this service has {embedder.name!r}")
    if body.dimensions not in (None, embedder.dim):
        reason = f"the embedder's vectors have {embedder.dim} dimensions, not {body.dimensions}: leave it out"
        raise Invalid(reason, field="dimensions")


async def _rendered(vectors: TextVectors, body: EmbeddingRequest, *, tenant: str) -> str:
    """The answer, rendered part by part: so many numbers at once would hold the event loop."""
    texts = [body.input] if isinstance(body.input, str) else body.input
    rows: list[str] = []
    tokens = 0
    async with aclosing(vectors.parts(tenant, texts)) as parts:
        async for part in parts:
            tokens += part.tokens
            for vector in part.vectors:
                row = Embedding(index=len(rows), embedding=_numbers(vector, body.encoding_format))
                rows.append(row.model_dump_json())
    usage = EmbeddingUsage(prompt_tokens=tokens, total_tokens=tokens).model_dump_json()
    return f'{{"object":"list","data":[{",".join(rows)}],"model":{json.dumps(vectors.embedder.name)},"usage":{usage}}}'


def _numbers(vector: Vector, form: str | None) -> list[float] | str:
    numbers = vector.astype(np.dtype("<f4"))
    return base64.b64encode(numbers.tobytes()).decode() if form == "base64" else cast(list[float], numbers.tolist())
