"""Words as the lexical index knows them, in every script."""

import unicodedata

from hypothesis import given, settings
from hypothesis import strategies as st

from retriever.catalog import query_terms

UNSPACED = st.text("東京都市海山川日本語カタナひらがกขคงมา서울대한민국中华人𠮷", min_size=1, max_size=12)


@given(
    before=UNSPACED, run=UNSPACED, after=UNSPACED, around=st.sampled_from(["{}", "in {} too", "（{}）", "é{}é", "1{}x"])
)
@settings(deadline=None)
def test_any_piece_of_a_run_without_spaces_has_its_terms_in_the_whole(
    before: str, run: str, after: str, around: str
) -> None:
    told = query_terms.terms(around.format(before + run + after))
    for term in query_terms.query_terms(run):
        assert any(each.startswith(term[:-1]) if term.endswith("*") else each == term for each in told)


@given(st.text(max_size=40), st.text(max_size=40))
@settings(deadline=None)
def test_terms_are_ascii_and_the_same_whatever_stands_beside(one: str, other: str) -> None:
    terms = query_terms.terms(one)
    assert all(term.isascii() and term.isalnum() for term in terms)
    assert query_terms.terms(f"{one} \n{other}") == [*terms, *query_terms.terms(other)]
    assert query_terms.terms(f"{one} é") == [*terms, "e"]
    assert all(term.rstrip("*").isalnum() for term in query_terms.query_terms(one))


def test_a_composed_and_a_decomposed_text_are_the_same_words() -> None:
    for text in ("é", "ü", "が", "한", "ệ", "й"):
        forms = {tuple(query_terms.terms(unicodedata.normalize(form, text))) for form in ("NFC", "NFD", "NFKC", "NFKD")}
        assert len(forms) == 1


def test_what_nobody_sees_within_a_word_parts_it_from_no_other_spelling() -> None:
    for unseen in ("\u00ad", "\u200b", "\u200c", "\u200d", "\u2060", "\ufeff"):
        for word in ("information", "straße", "कुत्ता", "мышь", "ゼロ幅"):
            assert query_terms.terms(f"the {word[:3]}{unseen}{word[3:]} is") == query_terms.terms(f"the {word} is")
