"""Keys and scopes as text: what is written is read back, what was not written is refused, no two keys meet."""

import re
from pathlib import PurePosixPath, PureWindowsPath

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from store.errors import KeyFormatError
from store.key import MAX_TEXT_BYTES, CacheKey, Scope

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
awkward = st.sampled_from(
    [
        *("A", "a", "É", "é", "É", "/", "a/b", "=", "=2E", "=2e", ".", "..", "...", ".a", "a.", "\0", "\\", "ß", "ẞ"),
        *("İ", " "),
    ]
)
parts = texts | awkward
keys = st.builds(CacheKey, parts, parts, parts, parts)
scopes = st.integers(1, 3).flatmap(lambda count: st.tuples(*[parts] * count)).map(lambda named: Scope(*named))
spellings = st.text(st.sampled_from("aA0=2E2e./\\é"), max_size=30)


@given(keys)
def test_a_key_is_read_back(key: CacheKey) -> None:
    assert CacheKey.parse(key.text) == key


@given(scopes)
def test_a_scope_is_read_back(scope: Scope) -> None:
    assert Scope.parse(scope.text) == scope


@pytest.mark.parametrize("kind", [CacheKey, Scope])
@given(text=st.text(max_size=40) | spellings)
@example(text="a/b/c/d")
@example(text="a/b/c/d/")
@example(text="a/b/c/=41")
@example(text="a/b/c/=2E")
@example(text="a/b/c/=2e")
@example(text="a/")
@example(text="a")
@example(text="")
@example(text="/")
def test_a_text_that_no_key_and_no_scope_writes_is_refused(kind: type[CacheKey | Scope], text: str) -> None:
    try:
        read = kind.parse(text)
    except KeyFormatError:
        return
    assert read.text == text


OTHERS = [
    "a", "a/b/c", "a/b/c/d/e", "a/b/c/d/", "a//c/d", "a/b/c/D",
    "a/b/c/=44=", "a/b/c/=64", "a/b/c/=ff", "a/b/c/.d", "a/b/c/=FF", "a/b/c/=C3",
    "a/b/c/=ED=A0=80", "../b/c/d", "a/b/c/.", "a/b/c/..", "a/b/c/é", "a/b/c/=",
    "a/b/c/=2", "a/b/c/=2E=2E",
]  # fmt: skip


@pytest.mark.parametrize("text", ["", " ", "a/b/c/ d", "a/b/c/d\n", "a/b/c/\ud800", "a/b/c/\0", *OTHERS])
def test_another_spelling_is_no_key(text: str) -> None:
    with pytest.raises(KeyFormatError, match=r"is not|not valid"):
        CacheKey.parse(text)


@given(keys, keys)
@example(CacheKey("a", "b", "c", "D"), CacheKey("a", "b", "c", "d"))
@example(CacheKey("ß", "b", "c", "d"), CacheKey("ss", "b", "c", "d"))
@example(CacheKey("a/b", "c", "d", "e"), CacheKey("a", "b/c", "d", "e"))
@example(CacheKey("=41", "b", "c", "d"), CacheKey("A", "b", "c", "d"))
@example(CacheKey("e\u0301", "b", "c", "d"), CacheKey("\u00e9", "b", "c", "d"))
def test_no_two_keys_meet_on_a_disk_that_ignores_case(one: CacheKey, other: CacheKey) -> None:
    assert (one.text.casefold() == other.text.casefold()) == (one == other)


@given(keys)
def test_no_part_leaves_its_folder(key: CacheKey) -> None:
    written = key.text.split("/")
    assert len(written) == 4
    for part in written:
        assert not part.startswith(".")
        assert re.fullmatch(r"[a-z0-9_.@=A-F-]+", part)
        assert PureWindowsPath(part).parts == PurePosixPath(part).parts == (part,)


@given(keys, scopes)
@example(CacheKey("acme2", "b", "c", "d"), Scope("acme"))
@example(CacheKey("acme", "b", "c", "d"), Scope("acme"))
@example(CacheKey("acme", "b", "fp2", "q4"), Scope("acme", "b", "fp"))
def test_a_scope_holds_the_keys_that_begin_with_its_text(key: CacheKey, scope: Scope) -> None:
    assert (key in scope) == key.text.startswith(scope.text)


@given(keys)
def test_a_key_is_in_each_of_its_scopes_and_they_nest(key: CacheKey) -> None:
    held = [Scope.parse(text) for text in key.scopes]
    assert [len(scope.parts) for scope in held] == [1, 2, 3]
    assert all(key in scope for scope in held)
    assert all(inner.startswith(outer) for outer, inner in zip(key.scopes, key.scopes[1:], strict=False))


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize(
    ("part", "remedy"),
    [("", "must not be empty"), ("x\ud800y", "lone surrogate"), ("x" * (MAX_TEXT_BYTES + 1), "shorten its parts")],
)
def test_a_part_that_cannot_be_written_is_refused(place: int, part: str, remedy: str) -> None:
    named = ["a", "b", "c", "d"]
    named[place] = part
    with pytest.raises(KeyFormatError, match=remedy) as raised:
        CacheKey(*named)
    assert repr(part)[:40].rstrip("'") in str(raised.value) or part[:40] in str(raised.value)
    with pytest.raises(KeyFormatError, match=remedy):
        Scope(*named[: place + 1][-3:])


def test_the_longest_key_is_read_back_and_one_byte_more_is_refused() -> None:
    longest = CacheKey("a", "b", "c", "d" * (MAX_TEXT_BYTES - 6))
    assert CacheKey.parse(longest.text) == longest
    with pytest.raises(KeyFormatError, match=str(MAX_TEXT_BYTES)):
        CacheKey("a", "b", "c", "d" * (MAX_TEXT_BYTES - 5))


def test_a_scope_with_a_gap_is_refused() -> None:
    with pytest.raises(KeyFormatError, match="without a gap"):
        Scope("a", None, "c")


def test_a_fingerprint_tells_origin_context_and_domain() -> None:
    def parts(fingerprint: str) -> tuple[str, str, str]:
        key = CacheKey.parse(CacheKey("acme", "chunk", fingerprint, "q4").text)
        return key.origin, key.context, key.domain

    assert parts("print") == ("print", "", "")
    assert parts("print@behind") == ("print", "behind", "")
    assert parts("print.domain") == ("print", "", "domain")
    assert parts("print@behind.domain") == ("print", "behind", "domain")
