"""Ids of vector stores and files stand for names of collections and documents, whatever these are."""

import re

from hypothesis import given
from hypothesis import strategies as st

from service.openai.stored_files import FILES, VECTOR_STORES

NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=64)


@given(NAMES)
def test_every_name_comes_back_from_an_id_that_no_path_changes(name: str) -> None:
    for ids in (VECTOR_STORES, FILES):
        assert ids.name_of(ids.id_of(name)) == name
        assert re.fullmatch(r"[\w.~-]+", ids.id_of(name), re.ASCII)


def test_plain_names_stand_as_they_are_and_may_be_written_by_hand() -> None:
    assert (VECTOR_STORES.id_of("handbook"), FILES.id_of("report-7.pdf")) == ("vs_handbook", "file-report-7.pdf")
    assert (VECTOR_STORES.name_of("vs_50 % more"), FILES.name_of("file-a/b")) == ("50 % more", "a/b")


def test_ids_of_another_kind_stand_for_nothing() -> None:
    assert [VECTOR_STORES.name_of(each) for each in ("file-a", "vs_", "", "vs_a~00b")] == [None] * 4
    assert [FILES.name_of(each) for each in ("vs_a", "file-", "")] == [None] * 3
