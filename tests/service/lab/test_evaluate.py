"""`kvweave eval` on a tiny random model: its numbers against transformers' own, its options, what it saves."""

import copy
import json
import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, PreTrainedModel
from typer.testing import CliRunner

from blend.adopt.load import LoadedModel, adopt
from service import cli
from service.app.operating_point import FULL, OperatingPoint
from service.lab.eval import policy_choice
from service.lab.eval.case_probe import CaseMeasurement, CaseProbe
from service.lab.eval.grid import grid, run
from service.lab.questions.cases import Case, SuiteError
from service.lab.questions.contexts import in_contexts
from service.model.capture_context import ALONE, in_context
from service.model.prompt_builder import PromptBuilder, PromptPassage, PromptTokens
from tests.blend import dense
from tests.blend.families import BASE, build, put
from tests.blend.tokenizers_made import fresh, made

CASE = Case(
    "Where is it?",
    (
        PromptPassage("The fox is in Tokyo.", "One"),
        PromptPassage("It sleeps for a while."),
        PromptPassage("print(double(21))"),
    ),
    ("Tokyo",),
    2,
)
ANSWER_TOKENS = 6
UNKNOWN, KNOWN = replace(CASE, answers=()), replace(CASE, answers=("It is Tokyo",), skip="It is", foils=("It is Oslo",))
POOL = [PromptPassage(f"Passage {number} tells of wells and of bridges.", f"Book {number}") for number in range(40)]
EVAL = ("eval", "--answer-tokens", "3")
WANTED = {
    *("policy", "ratio", "codec", "n", "exact_match", "exact_match_one_chunk", "exact_match_two_chunk", "f1"),
    *("agreement", "kl", "ttft_ms", "ttft_speedup", "reused_tokens", "recomputed_tokens", "bytes_per_token"),
}


@cache
def native(**more: int) -> PreTrainedModel:
    words = {"vocab_size": len(made("bytes")), "eos_token_id": made("bytes").eos_token_id}
    return build(LlamaConfig(**{**BASE, **words, **more}))


@cache
def tiny(**more: int) -> LoadedModel:
    return adopt(put(copy.deepcopy(native(**more))), made("bytes"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    native().save_pretrained(path)
    fresh("bytes").save_pretrained(path)
    return path


def measured(*points: OperatingPoint, case: Case = CASE) -> CaseMeasurement:
    probe = CaseProbe(tiny(), answer_tokens=ANSWER_TOKENS)
    try:
        return probe.measure(case, points)
    finally:
        probe.close()


def laid() -> PromptTokens:
    return PromptBuilder(tiny().tokenizer).lay(CASE.turns)


def test_full_prefill_answers_as_transformers_does() -> None:
    tokens, _ = dense.greedy(native(), laid().prompt({}).ids, ANSWER_TOKENS)
    kept = [token for token in tokens if token not in tiny().tokenizer.stop_ids]
    assert measured(FULL).outcomes[FULL].answer == tiny().tokenizer.decode(kept).strip()


@pytest.mark.parametrize("case", [UNKNOWN, KNOWN, *in_contexts([UNKNOWN, KNOWN], POOL)])
def test_divergence_and_nats_are_what_a_dense_computation_finds(case: Case) -> None:
    """Along full prefill's own answer or the known one, from chunks captured alone and in their contexts."""
    reuse = OperatingPoint("reuse", 0.0, "lossless")
    got = measured(reuse, case=case).outcomes
    prompt, encode = laid(), tiny().tokenizer.encode_text
    ids, chunks = [*prompt.prefix], list[dense.Cached]()
    for each in prompt.runs:
        if each.passage is not None:
            passage, context = case.passages[each.passage], (case.contexts or [ALONE] * 3)[each.passage]
            found = in_context(
                PromptBuilder(tiny().tokenizer), passage, context=context, prefix=prompt.prefix, window=4096
            )
            assert bool(context.filler) == (len(found.shared) > len(prompt.prefix))
            chunks.append(dense.Cached(len(ids), (*found.shared, *found.before), found.all))
        ids += each.ids
    ids += prompt.suffix
    assert all(tuple(ids[chunk.start :][: len(chunk.ids)]) == chunk.ids for chunk in chunks)
    told = encode("".join(case.answers))
    answer = told if case.answers else dense.greedy(native(), ids, ANSWER_TOKENS)[0]
    scored = len(answer) - len(encode(case.skip))
    whole = [*ids, *answer[:-1]]
    slots = {slot for chunk in chunks for slot in chunk.slots}
    rows = [slot for slot in range(len(whole)) if slot not in slots]
    logits, _ = dense.rows_through(native(), whole, rows, dense.slots_kv(native(), whole, chunks))
    wanted, mixed = (each[-scored:].log_softmax(-1) for each in (dense.prefill(native(), whole), logits))
    kl = torch.nn.functional.kl_div(mixed, wanted, log_target=True, reduction="sum") / scored
    assert got[reuse].divergence.kl == pytest.approx(float(kl), rel=1e-3, abs=1e-6)
    assert got[reuse].divergence.top1 == pytest.approx(float((mixed.argmax(-1) == wanted.argmax(-1)).float().mean()))
    for point, dense_logprobs in ((FULL, wanted), (reuse, mixed)):
        nats = [-float(row[token]) for row, token in zip(dense_logprobs, answer[-scored:], strict=True)]
        assert got[point].nats == (pytest.approx(sum(nats) / scored, rel=1e-3) if case.answers else None)


def test_all_tokens_recomputed_is_full_prefill() -> None:
    point = OperatingPoint("hybrid", 1.0, "lossless")
    outcome = measured(FULL, point).outcomes[point]
    assert outcome.agrees
    assert outcome.divergence.kl < 1e-6


def test_an_answer_that_differs_is_the_points_own() -> None:
    """Several questions, so that some answers differ; each is generated again token by token."""
    point = OperatingPoint("reuse", 0.0, "q2")
    cases = [replace(CASE, question=f"What is {number} in Tokyo?") for number in range(8)]
    outcomes = [measured(FULL, point, case=case).outcomes for case in cases]
    assert any(not each[point].agrees for each in outcomes)
    assert all((each[point].answer == each[FULL].answer) for each in outcomes if each[point].agrees)


def test_codecs_are_compared_with_lossless_records() -> None:
    plain, coarse, fine = (OperatingPoint("reuse", 0.0, codec) for codec in ("lossless", "q2", "q8"))
    outcomes = measured(FULL, coarse, fine, plain).outcomes
    costs = [each.kl for each in (outcomes[point].codec for point in (plain, fine, coarse)) if each]
    assert len(costs) == 3 and 0 == costs[0] < costs[1] < costs[2]


def test_passages_beyond_the_window_are_left_out_and_counted() -> None:
    model = tiny(max_position_embeddings=512)
    long = replace(CASE, passages=tuple(PromptPassage("while " * 60) for _ in range(12)))
    points = grid(["full"], [0.0], codecs=["lossless"])
    result = run(model, [long], points=points, answer_tokens=4, progress=lambda done: None)
    assert 0 < result.dropped < 12
    assert result.rows[0].prompt_tokens <= model.decoder.window == 512


def test_a_grid_has_a_row_for_every_combination_and_computes_what_differs() -> None:
    points = grid(["full", "reuse", "hybrid"], [0.1, 0.5], codecs=["lossless", "q4"])
    result = run(tiny(), [CASE] * 2, points=points, answer_tokens=2, progress=lambda done: None)
    assert [(each.policy, each.ratio, each.codec) for each in result.rows] == [
        (policy, ratio, codec)
        for policy in ("full", "reuse", "hybrid")
        for ratio in (0.1, 0.5)
        for codec in ("lossless", "q4")
    ]
    full = [each for each in result.rows if each.policy == "full"]
    assert len({(each.ttft_ms, each.agreement, each.kl) for each in full}) == 1
    assert all(each.reused_tokens + each.recomputed_tokens <= each.prompt_tokens for each in result.rows)


@pytest.mark.parametrize(
    ("policies", "ratios", "codecs", "words"),
    [
        (["hybird"], [0.1], ["q4"], "hybird"),
        (["full"], [1.5], ["q4"], "1.5"),
        (["full"], [0.1], ["q9"], "q9"),
        (["full"], [0.1], ["q4@" + "0" * 32], "q4@0.*use lossless, q2 to q8"),
        ([], [0.1], ["q4"], "at least one"),
    ],
)
def test_a_point_that_does_not_exist_is_named(
    policies: list[str], ratios: list[float], codecs: list[str], words: str
) -> None:
    with pytest.raises(SuiteError, match=words):
        grid(policies, ratios, codecs=codecs)


def test_without_names_all_policies_but_prefix_are_compared() -> None:
    named = ["full", "reuse", "heads", "deviation", "hybrid", "ask", "replay"]
    assert [point.policy for point in grid(None, [0.1], codecs=["q4"])] == named


def test_too_few_questions_are_refused_before_anything_is_measured(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="got 6"):
        asked("--n", "6", "--model", "nowhere", "--save", str(tmp_path / "k.toml"))
    assert not (tmp_path / "k.toml").exists()


def test_the_command_prints_json_writes_a_page_and_saves(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_choice, "LEAST", 4)
    suite = tmp_path / "questions.jsonl"
    suite.write_text(
        "\n".join(
            json.dumps({"question": f"What is {number}?", "ctxs": [{"title": "T", "text": f"It is {number}."}] * 2})
            for number in range(4)
        )
    )
    page, settings = tmp_path / "page.html", tmp_path / "k.toml"
    output = asked("--suite", str(suite), "--model", str(folder), "--policies", "full,reuse,hybrid", "--ratios", "0.15",
                   "--codecs", "lossless,q4", "--html", str(page), "--save", str(settings), "--bound", "1",
                   "--json")  # fmt: skip
    found = json.loads(output)
    assert len(found["rows"]) == 6
    assert set(found["rows"][0]) >= WANTED
    assert found["rows"][0]["exact_match"] is None, "no answers are known"
    assert found["rows"][0]["agreement"] == 1
    assert "<svg" in page.read_text()
    assert tomllib.loads(settings.read_text())["policy"] == found["choice"]["row"]["policy"]


@pytest.mark.parametrize("option", ["--html", "--save"])
def test_what_was_measured_is_told_where_a_file_cannot_be_written(
    option: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_choice, "LEAST", 2)
    options = ["--model", str(folder), "--n", "2", "--policies", "full,hybrid", "--ratios", "0.5", "--codecs", "q4"]
    result = CliRunner().invoke(cli.app, [*EVAL, *options, "--bound", "1", option, str(tmp_path), "--json"])
    assert isinstance(result.exception, IsADirectoryError)
    assert len(json.loads(result.stdout)["rows"]) == 2


def test_what_was_measured_is_shown_where_nothing_of_it_is_within_the_bounds(folder: Path) -> None:
    compared = ("--policies", "hybrid", "--ratios", "0.5", "--codecs", "q4", "--yardsticks", "0", "--bound", "0")
    output = asked("--model", str(folder), "--n", "2", *compared)
    assert "hybrid" in output and "reuse nothing" in output


def test_a_corpus_with_questions_alone_is_measured_by_agreement(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus/animals.txt").write_text("The fox is quick.\n\nThe dog is lazy.")
    (tmp_path / "corpus/picture.png").write_bytes(b"no text")
    (tmp_path / "asked.txt").write_text("Who is lazy?\nWho is quick?\n")
    options = ["--suite", str(tmp_path / "asked.txt"), "--corpus", str(tmp_path / "corpus"), "--model", str(folder),
               "--policies", "full,reuse", "--ratios", "0", "--codecs", "q4", "--json"]  # fmt: skip
    result = CliRunner().invoke(cli.app, [*EVAL, *options], catch_exceptions=False)
    assert [each["exact_match"] for each in json.loads(result.stdout)["rows"]] == [None, None]
    assert f"skipped, the suffix '.png' is unknown: {tmp_path}/corpus/picture.png\n" in result.stderr


def asked(*options: str) -> str:
    result = CliRunner().invoke(cli.app, [*EVAL, *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert ("Saved policy = " in result.stderr) == ("--save" in options)
    return result.stdout


def test_an_empty_passage_holds_nothing_to_capture() -> None:
    points = grid(["full", "reuse"], [0.0], codecs=["lossless"])
    empty = replace(CASE, passages=(PromptPassage(""), *CASE.passages, PromptPassage("", "Title")))
    result = run(
        tiny(), [empty, replace(CASE, passages=())], points=points, answer_tokens=4, progress=lambda done: None
    )
    assert result.dropped == 0
