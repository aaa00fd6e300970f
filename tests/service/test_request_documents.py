"""Documents that come with a request: known chunks are recognised in them, for those who may see them and no others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blend.fuse.prompt import ChunkSegment
from retriever.documents import Document, DocumentPart, chunk_id
from service.access.principal import Role
from tests.service.checkpoints import checkpoint
from tests.service.overhearing import Overheard
from tests.service.passages import PASSAGES, QUESTIONS
from tests.service.serving import Inside, Json, for_models, good, in_process, put_in, settings_in

CHUNKS = [each.text for each in PASSAGES]
OTHERS = ["Tides rose. Nobody in the harbor saw it, as it was night.", CHUNKS[0][:40], f"x{CHUNKS[1][1:]}", "It."]
KINDS = ("builtin", "unigram", pytest.param("metaspace-first", marks=pytest.mark.long))
BLENDS: dict[str, Json] = {
    "full": {"policy": "full"},
    "reuse": {"policy": "reuse"},
    "all again": {"policy": "hybrid", "ratio": 1.0},
}


@dataclass(frozen=True, slots=True)
class Loose:
    """A document made of pieces."""

    pieces: tuple[str, ...]
    title: str
    between: str

    @property
    def text(self) -> str:
        return f"\n {self.between.join(self.pieces)}\t"

    @property
    def chunks(self) -> list[str]:
        return [piece for piece in self.pieces if piece in CHUNKS]

    def shown(self) -> str:
        """As it stands in a prompt."""
        return self.text.strip() + (f"\n({self.title})\n\n" if self.title else "\n\n")


made = st.builds(
    Loose,
    st.lists(st.sampled_from([*CHUNKS, *OTHERS]), min_size=1, max_size=3).map(tuple),
    st.sampled_from(["", "Letter 40"]),
    st.sampled_from([" ", "\n\n"]),
)
several = st.lists(made, min_size=1, max_size=3)


@dataclass(frozen=True, slots=True)
class Heard:
    """An answer, with the prompt that the engine was asked for it and the texts of the chunks in that."""

    answer: str
    reused: int
    sources: list[Json]
    report: list[Json]
    prompt: str
    chunks: list[str]


Asking = Callable[..., Heard]


@pytest.fixture(scope="module", params=for_models(KINDS))
def inside(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    folder = tmp_path_factory.mktemp(request.param)
    model = "builtin" if request.param == "builtin" else checkpoint(folder / "model", request.param)
    with (
        in_process(settings_in(folder, model=model, dtype="float32", device="cpu", codec="lossless")) as inside,
        inside.client() as client,
    ):
        inside.core.control.create_key("default", Role.READ, bound={"team": "d"})  # before what it divides is stored
        rules = {"system": "You read letters."}  # a prefix that no request has
        assert client.put("/v1/collections/letters", json=rules).status_code == 201
        for at, text in enumerate(CHUNKS):
            entry = {"id": f"d{at}", "chunks": [{"text": text}], "metadata": {"team": "a"}}
            put_in(client, [entry], collection="letters" if at % 2 else "default")
        yield inside


@pytest.fixture(scope="module")
def keys(inside: Inside) -> dict[str, str]:
    """Of one that sees all, of two that see nothing, and of one for whom there is nothing."""
    held = {
        "reader": ("default", None),
        "stranger": ("default", {"team": "b"}),
        "another": ("default", {"team": "c"}),
        "alone": ("empty", {"team": "c"}),
    }
    create = inside.core.control.create_key
    return {name: create(tenant, Role.READ, bound=bound)[1] for name, (tenant, bound) in held.items()}


@pytest.fixture(scope="module", params=["query", "chat"])
def ask(request: pytest.FixtureRequest, inside: Inside, keys: dict[str, str]) -> Asking:
    """By the name of a key, about documents, blended so."""
    overheard = Overheard(inside.core)
    question = f"Question: {QUESTIONS[0]}"

    def ask(name: str, found: Sequence[Loose], *, blend: str = "reuse") -> Heard:
        given = [{"id": f"n{at}", "title": each.title, "text": each.text} for at, each in enumerate(found)]
        body: Json = {"documents": given, "blend": BLENDS[blend]}
        with inside.client(keys[name]) as client:
            if request.param == "query":
                body |= {"question": QUESTIONS[0], "sampling": {"max_tokens": 4}}
                told = good(client.post("/v1/query", json=body))
                answer, reused = told["answer"], told["usage"]["reused_tokens"]
            else:
                turns = [{"role": "user", "content": question}]
                body |= {"model": "default", "messages": turns, "max_tokens": 4, "temperature": 0}
                whole = good(client.post("/v1/chat/completions", json=body))
                answer, told = whole["choices"][0]["message"]["content"], whole["kvweave"]
                reused = whole["usage"]["prompt_tokens_details"]["cached_tokens"]
        prompt = inside.core.model.prompt_builder.tokenizer.decode(overheard.ids())
        assert f"{''.join(each.shown() for each in found)}{question}" in prompt
        return Heard(
            answer, reused, told["sources"], told["report"]["chunks"], prompt, overheard.segments(ChunkSegment)
        )

    return ask


@settings(max_examples=8, deadline=None, derandomize=True)
@given(several)
def test_prompt_and_sources_are_the_documents_as_they_came_whether_chunks_are_recognised_or_not(
    ask: Asking, found: list[Loose]
) -> None:
    seen, unseen = ask("reader", found), ask("stranger", found)
    wanted = [piece for each in found for piece in each.chunks]
    assert seen.prompt == unseen.prompt
    assert (seen.chunks, unseen.chunks) == (wanted, [])
    assert [each["chunk_id"] for each in seen.report] == [chunk_id(piece) for piece in wanted]
    assert {(each["source"], each["miss_reason"]) for each in seen.report} <= {("lmdb", None)}
    assert seen.reused >= sum(each["tokens"] for each in seen.report) - 1 and (seen.reused > 0 or not wanted)
    assert [(each["document_id"], each["title"], each["text"]) for each in seen.sources] == [
        (f"n{at}", each.title, each.text) for at, each in enumerate(found)
    ]
    whole = [
        chunk_id(each.pieces[0]) if each.chunks == [*each.pieces] and not each.pieces[1:] else "" for each in found
    ]
    assert [each["chunk_id"] for each in seen.sources] == whole


@settings(max_examples=4, deadline=None, derandomize=True)
@given(several)
def test_to_read_all_of_them_again_answers_as_if_nothing_were_reused(ask: Asking, found: list[Loose]) -> None:
    again, full = ask("reader", found, blend="all again"), ask("reader", found, blend="full")
    assert (again.answer, again.prompt, again.sources) == (full.answer, full.prompt, full.sources)
    assert [each["tokens"] for each in again.report] == [each["tokens"] for each in full.report]


@settings(max_examples=4, deadline=None, derandomize=True)
@given(several)
def test_a_key_that_does_not_see_them_is_told_what_it_is_told_where_there_are_none(
    ask: Asking, found: list[Loose]
) -> None:
    assert ask("another", found) == ask("alone", found)


def test_nothing_is_recognised_across_two_documents(inside: Inside, ask: Asking) -> None:
    joined = "The first half of it ends here\0and the second half begins."
    with inside.core.tenants.open("default").catalog.change() as change:
        change.put([Document("joined", (DocumentPart(joined),))], collection="default")
    first, second = joined.split("\0")
    heard = ask("reader", [Loose((first,), "", " "), Loose((second, CHUNKS[0]), "", " ")])
    assert heard.chunks == [CHUNKS[0]]
