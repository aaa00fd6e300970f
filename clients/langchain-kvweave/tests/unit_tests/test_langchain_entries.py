"""Documents of LangChain as they are put in: their ids, what is left out, and how many go by one request."""

import json

from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document

from kvweave_client import batches
from kvweave_client.following import LARGEST, MOST
from kvweave_client.passages import PREFIX
from kvweave_client.plain import plain_text
from langchain_kvweave.entries import entries


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", "c", "d", None]), st.sampled_from(["x", "y", " \n", "z\0"])), max_size=9
    )
)
def test_of_each_id_the_last_is_kept(given_: list[tuple[str | None, str]]) -> None:
    items = [Document(text, id=name) for name, text in given_]
    made = entries(items, collection="c")
    last = dict(zip(made.ids, (plain_text(text) for _, text in given_), strict=True))
    sent = {chunk.get("id"): chunk["text"] for each in made.documents for chunk in each.get("chunks", [])}
    assert sent == {name: text for name, text in last.items() if text.strip()}
    assert set(made.blank) == last.keys() - sent.keys()
    assert [each.get("id") for each in made.documents] == [f"c/{name}" for name in last if name in sent]


def test_documents_without_an_id_are_the_same_when_they_say_the_same() -> None:
    first, again, other = (Document("x", metadata={"n": n}) for n in (1, 1, 2))
    ids = entries([first, again, other], collection="c").ids
    assert ids[0] == ids[1] != ids[2]


def test_requests_stay_small_and_hold_every_document_once() -> None:
    many = [Document("word", id=str(number)) for number in range(2 * MOST + 1)]
    large = [Document("x" * (LARGEST // 3), id=f"large {number}") for number in range(7)]
    requests = list(batches(entries([*many, *large], collection="c").documents))
    assert all(len(request) <= MOST and len(json.dumps(request)) <= LARGEST * 1.01 for request in requests)
    assert [each.get("id") for request in requests for each in request] == [f"c/{each.id}" for each in [*many, *large]]


def test_names_of_this_package_are_no_metadata_of_a_user() -> None:
    found = Document("x", id="1", metadata={"mine": 1, f"{PREFIX}score": 0.5})
    [entry] = entries([found], collection="c").documents
    assert entry.get("metadata") == {"mine": 1}
