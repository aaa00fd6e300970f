"""What of retrieved documents goes to a chat: ids while they are true, texts otherwise."""

from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document

from kvweave_client import Source
from langchain_kvweave.documents import document_of, reading

TEXTS = ["one", "two", "three", " one ", "\0", ""]


def found(text: str, **metadata: object) -> Document:
    """As the retriever makes them. In place of a digest any text serves as a chunk's id."""
    return document_of(Source(f"id of {text.strip()}", "document", "a title", 0.5, text, metadata))


DOCUMENTS = st.lists(
    st.sampled_from(TEXTS).flatmap(lambda text: st.sampled_from([found(text), Document(text), Document(text, id="x")]))
)


@given(DOCUMENTS)
def test_each_text_is_read_once_and_in_its_order(documents: list[Document]) -> None:
    wanted = list(dict.fromkeys(each.page_content.replace("\0", "").strip() for each in documents))
    read = reading(documents)
    texts = [name.removeprefix("id of ") for name in read.chunk_ids] + [each["text"].strip() for each in read.loose]
    assert texts == [text for text in wanted if text]
    assert [each["text"].strip() for each in read.texts] == texts


@given(DOCUMENTS)
def test_ids_are_used_up_to_the_first_document_that_has_none(documents: list[Document]) -> None:
    read = reading([found("zero"), *documents])
    assert read.chunk_ids[0] == "id of zero"
    if read.loose:
        stands = next(each for each in documents if each.page_content.strip() == read.loose[0]["text"].strip())
        assert "kvweave_chunk_id" not in stands.metadata


def test_a_text_that_was_changed_behind_the_retriever_goes_as_it_is() -> None:
    shortened = found("a long passage").model_copy(update={"page_content": "a passage"})
    assert reading([shortened]).chunk_ids == ()
    assert [dict(each) for each in reading([shortened]).loose] == [
        {"text": "a passage", "title": "a title", "id": "id of a long passage"}
    ]


def test_white_space_around_a_chunk_changes_nothing() -> None:
    stripped = found(" a passage\n").model_copy(update={"page_content": "a passage"})
    assert reading([stripped]).chunk_ids == ("id of a passage",)


def test_metadata_of_the_user_stays_under_its_names() -> None:
    names = ("chunk_id", "document_id", "score", "title", "page", "start", "end", "cache", "source")
    mine = dict.fromkeys(names, "mine")
    assert mine.items() <= found("text", **mine).metadata.items()


def test_what_is_not_known_is_left_out() -> None:
    passage = Source("chunk", "document", "", 0.5, "text", {}, page=3)
    assert {name: value for name, value in document_of(passage).metadata.items() if name != "kvweave_digest"} == {
        "kvweave_chunk_id": "chunk",
        "kvweave_document_id": "document",
        "kvweave_score": 0.5,
        "kvweave_title": "",
        "kvweave_page": 3,
    }
