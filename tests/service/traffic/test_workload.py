"""What is asked: shares, orders and arrivals of made-up prompts, and traces as they are published."""

import json
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import pytest

from service.errors import Invalid
from service.traffic.prompts import PromptTexts, encoded, words
from service.traffic.trace import read_trace
from service.traffic.workload import ChunkShape, MadeUp, Replayed, RequestShape, own_rate

MADE = MadeUp(requests=400, chunks=(2, 5, 10), chunk_tokens=64, repeated=0.8, answer_tokens=8, seed=3)


@pytest.mark.parametrize("repeated", [0.0, 0.5, 0.8, 1.0])
def test_so_large_a_share_came_before_and_the_rest_never(repeated: float) -> None:
    made = MadeUp(400, (2, 5, 10), 64, repeated=repeated, answer_tokens=8, seed=3)
    warm = {chunk for chunks in made.warm_up() for chunk in chunks}
    seen: list[ChunkShape] = [
        chunk for number in range(2) for each in made.stretch(2.0, mark=str(number)) for chunk in each.chunks
    ]
    before = [chunk for chunk in seen if chunk in warm]
    assert len(before) / len(seen) == pytest.approx(repeated, abs=0.03)
    new = [chunk for chunk in seen if chunk not in warm]
    assert len(new) == len(set(new))


def test_chunks_come_in_other_orders() -> None:
    firsts = {each.chunks[0] for each in MADE.stretch(1.0, mark="")}
    assert len(firsts) > 40
    assert all(len(set(each.chunks)) == len(each.chunks) for each in MADE.stretch(1.0, mark=""))


def test_arrivals_are_drawn_and_the_same_again() -> None:
    stretch = MADE.stretch(4.0, mark="1")
    assert stretch == MADE.stretch(4.0, mark="1") != MADE.stretch(4.0, mark="2")
    gaps = [b.at_s - a.at_s for a, b in pairwise(stretch)]
    assert fmean(gaps) == pytest.approx(1 / 4, rel=0.15)
    assert fmean(gap**2 for gap in gaps) == pytest.approx(2 * fmean(gaps) ** 2, rel=0.4)  # as by chance


def test_a_text_has_so_many_words_and_other_marks_share_none() -> None:
    texts = {mark: words(mark, 300) for mark in ("a", "b", "c")}
    assert {len(text.split()) for text in texts.values()} == {300}
    assert len({text[:40] for text in texts.values()}) == 3
    assert words("a", 300) == texts["a"]


def test_a_body_holds_the_chunks_in_order() -> None:
    chunks = (ChunkShape("x", 40), ChunkShape("y", 20))
    texts = PromptTexts("mark", 2.0)
    body = json.loads(encoded(RequestShape(0.0, chunks, 9), texts, fields={"model": "m", "stream": True}))
    content = body["messages"][0]["content"]
    assert (body["model"], body["stream"], body["max_tokens"]) == ("m", True, 9)
    assert content.startswith(f"{texts.text(chunks[0])}\n\n{texts.text(chunks[1])}\n\nQuestion:")
    assert [len(texts.text(each).split()) for each in chunks] == [20, 10]


def line(**more: object) -> str:
    return json.dumps({"timestamp": 0, "input_length": 1200, "output_length": 7, "hash_ids": [1, 2, 3], **more})


def written(folder: Path, *lines: str) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_trace_keeps_its_blocks_lengths_and_spacing(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        line(input_length=1536),
        line(timestamp=3000, hash_ids=[1, 2, 9], input_length=1100, output_length=900),
        "",
        line(timestamp=1000, hash_ids=[7], input_length=512),
        line(timestamp=9000),
    )
    trace = read_trace(path, most=3)
    assert (trace.block_tokens, len(trace.entries), own_rate(trace.entries)) == (512, 3, pytest.approx(2 / 3))
    replayed = Replayed(trace.entries, block_tokens=64, answer_tokens=100)
    first, middle, last = replayed.stretch(4 / 3, mark="m")
    assert [each.at_s for each in (first, middle, last)] == [0, 0.5, 1.5]
    assert (first.answer_tokens, last.answer_tokens) == (7, 100)
    assert [chunk.tokens for chunk in last.chunks] == [64, 64, 10]  # 76 of 512 tokens, of 64
    assert first.chunks[:2] == last.chunks[:2] and first.chunks[2] != last.chunks[2]
    assert {*replayed.recurring([first, middle, last])} == {*first.chunks[:2]}
    assert not {*first.chunks} & {*replayed.stretch(4 / 3, mark="n")[0].chunks}  # a stretch begins with none known


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([line(), "{"], "line 2 is no request"),
        ([line(), json.dumps({"timestamp": 1})], "line 2 is no request"),
        ([line(hash_ids=[])], "line 1: a request has at least one block"),
        ([line(input_length=0)], "line 1: a request has"),
        ([""], "holds no request"),
    ],
)
def test_a_line_that_is_none_is_named(lines: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=said):
        read_trace(written(tmp_path, *lines), most=10)


def test_requests_that_come_at_once_have_no_rate(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="all come at one time"):
        own_rate(read_trace(written(tmp_path, line(), line()), most=10).entries)
