"""The command `kvweave eval`: options in, a table, JSON or a page out. `evaluation.py` does the rest."""

import json
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.table import Column

from service.commands.console import console, many, plain_table, status, tell
from service.commands.options import AsJson, check_folders, codecs, listed, policies, settings_with, whole_numbers
from service.commands.shown_progress import LINE_S, tell_unread

if TYPE_CHECKING:
    from blend.adopt.load import LoadedModel
    from service.lab.eval.evaluation import Questions
    from service.lab.eval.fitted_rule import FittedRule
    from service.lab.eval.grid import GridResult
    from service.lab.eval.policy_choice import PolicyChoice
    from service.lab.eval.result_row import ResultRow, YardstickRow
    from service.lab.questions.cases import Case
    from service.settings import Settings

MULTIHOP = "multihop"  # the built-in suite

# What a row shows in each column; what a policy does not look at stays empty.
COLUMNS: dict[str, Callable[["ResultRow"], str]] = {
    "suite": lambda row: row.suite,
    "policy": lambda row: row.policy,
    "ratio": lambda row: "" if _is_fixed(row.policy) else f"{row.ratio:g}",
    "codec": lambda row: "" if row.policy == "full" else row.codec,
    "KL": lambda row: f"{row.kl:.4f}",
    "x": lambda row: "" if row.yardsticks is None else f"{row.yardsticks:.2f}",
    "top-1": lambda row: _share(row.top1),
    "kept": lambda row: _share(row.kept),
    "exact": lambda row: _share(row.exact_match),
    "one": lambda row: _share(row.exact_match_one_chunk),
    "two": lambda row: _share(row.exact_match_two_chunk),
    "F1": lambda row: _share(row.f1),
    "holds": lambda row: _share(row.holds),
    "prefers": lambda row: _share(row.prefers),
    "agrees": lambda row: _share(row.agreement),
    "ttft ms": lambda row: f"{row.ttft_ms:.1f}",
    "sooner": lambda row: f"{row.ttft_speedup:.2f}",
    "B/token": lambda row: "" if row.policy == "full" else f"{row.bytes_per_token:,.0f}",
    "against full": lambda row: row.verdict,
}
NARROW = ("suite", "policy", "ratio", "codec", "KL", "x", "kept", "exact", "F1", "agrees", "sooner")
WIDE = 128  # columns, from which on all are shown

questions_option = partial(typer.Option, rich_help_panel="Questions")
grid_option = partial(typer.Option, rich_help_panel="What is compared")
result_option = partial(typer.Option, rich_help_panel="Result")

Suite = Annotated[
    str,
    questions_option(
        metavar="NAME",
        help=f"{MULTIHOP}, or a JSON or JSONL file of questions with passages, and with answers if known; of a corpus "
        "a file of questions alone, or suites that are drawn of it, with commas.",
    ),
]
Corpus = Annotated[
    Path | None, questions_option(metavar="PATH", help="A file or a folder that the suite's questions are asked of.")
]
Seed = Annotated[int, questions_option(metavar="N", help="What the built-in suite is drawn from.")]
Count = Annotated[int, questions_option("--n", metavar="N", help="How many questions; 0 for all of a file.", min=0)]
Difficulty = Annotated[str, questions_option(metavar="LIST", help="Of the built-in suite: 1 to 3, with commas.")]
Forms = Annotated[
    str,
    questions_option(
        metavar="LIST",
        help="How passages stand in the prompt, and, of the built-in suite, what they hold; with commas, or `all`.",
    ),
]
Passages = Annotated[
    str,
    questions_option(metavar="LIST", help="Suites with so many passages: 2 to 24, with commas.", show_default=False),
]
Tokens = Annotated[
    str,
    questions_option(
        metavar="LIST", help="Suites with prompts of about so many tokens, with commas.", show_default=False
    ),
]
Policies = Annotated[
    str | None,
    grid_option(
        metavar="LIST",
        help="Policies, with commas; by default all but prefix.",
        show_default=False,
        autocompletion=policies,
    ),
]
Ratios = Annotated[str, grid_option(metavar="LIST", help="Shares of cached tokens to recompute, with commas.")]
Codecs = Annotated[str, grid_option(metavar="LIST", help="Codecs, with commas.", autocompletion=codecs)]
AnswerTokens = Annotated[
    int, grid_option(metavar="N", help="Tokens of the longest answer, and of what divergence looks at.", min=1)
]
Named = Annotated[
    str,
    grid_option("--model", metavar="NAME", help="Hub name or folder; KVWEAVE_MODEL by default.", show_default=False),
]
Fit = Annotated[
    bool, grid_option("--fit", help="Fit the policy `ask` to the model on half of the questions; the others compare.")
]
FitCodec = Annotated[
    bool,
    grid_option("--fit-codec", help="Fit each codec to the model: as many bytes, spent on the layers that need them."),
]
Bound = Annotated[
    float,
    result_option(
        metavar="SHARE",
        help="How much of what passages tell, and of right answers, may be lost; 0.01 is one percent.",
        min=0,
        max=1,
    ),
]
Saved = Annotated[
    Path | None,
    result_option(
        "--save",
        metavar="FILE",
        help="Write the recommended point into this settings file, or `auto`: serve takes it for this model.",
    ),
]
Yardsticks = Annotated[
    float,
    result_option(
        metavar="N",
        help="How far a point may be from full prefill, in times of what that differs where passages change places.",
        min=0,
    ),
]
Html = Annotated[
    Path | None, result_option("--html", metavar="FILE", help="Write a page with a picture and every number.")
]


def evaluate(
    *,
    suite: Suite = MULTIHOP,
    corpus: Corpus = None,
    seed: Seed = 0,
    n: Count = 200,
    difficulty: Difficulty = "2",
    forms: Forms = "",
    passages: Passages = "",
    tokens: Tokens = "",
    policies: Policies = None,
    ratios: Ratios = "0.05,0.15,0.3",
    codecs: Codecs = "lossless,q4",
    answer_tokens: AnswerTokens = 16,
    model: Named = "",
    fit: Fit = False,
    fit_codec: FitCodec = False,
    bound: Bound = 0.01,
    yardsticks: Yardsticks = 1.0,
    save_to: Saved = None,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Measure what reuse costs in quality against full prefill, and recommend an operating point for your model.

    Without a suite it asks questions on a made-up world, and of your documents what needs no labels.

    Examples:
      kvweave eval --model ./my-model --html report.html
      kvweave eval --corpus ./docs --suite questions.txt
      kvweave eval --suite questions.jsonl --fit --save auto
    """
    from service.lab.eval.evaluation import Evaluation, Questions, keep
    from service.lab.eval.grid import grid
    from service.lab.eval.policy_choice import PolicyBounds

    check_folders(html, save_to)
    points = grid(policies and listed(policies), [_number(each) for each in listed(ratios)], codecs=listed(codecs))
    options = (("--difficulty", difficulty), ("--passages", passages), ("--tokens", tokens))
    settings, lists = settings_with(model), (listed(forms), *(whole_numbers(*each) for each in options))
    cases = _asked(Questions(suite, corpus, seed, n, *lists), settings)
    evaluation = Evaluation(cases, points, PolicyBounds(bound, yardsticks), answer_tokens, fit, fit_codec)
    evaluation.check(is_kept=save_to is not None)
    loaded = _loaded(settings)
    result, choice = evaluation.measure(loaded, settings, progress=_progress, on_fit=_tell_fit)
    facts = _facts(settings, suite=suite, seed=seed, result=result, choice=choice)
    _report(result, choice, facts=facts, html=html, as_json=as_json)
    if save_to:
        _tell_saved(*keep(choice, save_to, settings=settings, weights=loaded.fingerprint.weights))


def _asked(questions: "Questions", settings: "Settings") -> "list[Case]":
    """The questions behind the system prompt that new collections have."""
    from service.app.composition import usual_system

    asked, skipped, problems = questions.read(top_k=max(1, settings.top_k))
    tell_unread(skipped, problems)
    return [replace(each, system=usual_system(settings) or each.system) for each in asked]


def _loaded(settings: "Settings") -> "LoadedModel":
    from service.app.composition import compose_model

    with status(f"loading {settings.model}"):
        return compose_model(settings)


def _tell_fit(found: "FittedRule", cases: int) -> None:
    tell(
        f"Fitted {found.rule} on {many(cases, 'question')}: KL {found.kl:.4f} at {found.ratio:.0%}, "
        f"{found.unfitted_kl:.4f} by the rule that is taken where none is fitted.",
        err=True,
    )


def _tell_saved(file: Path, wrote: "dict[str, str | float]") -> None:
    tell(f"Saved {', '.join(f'{name} = {value}' for name, value in wrote.items())} in {file}.", err=True)


def _report(
    result: "GridResult", choice: "PolicyChoice", *, facts: dict[str, str], html: Path | None, as_json: bool
) -> None:
    """Prints JSON or a table: first, for it took hours. Then writes the page if one is wanted."""
    from service.lab.eval.report_page import report_page

    if as_json:
        typer.echo(json.dumps({**facts, **asdict(result), "choice": asdict(choice)}, indent=2, allow_nan=False))
    else:
        _show_grid(result, choice.sentence)
    if html:
        html.write_text(report_page(result, title="Quality against full prefill", facts=facts), encoding="utf-8")


def _show_grid(result: "GridResult", sentence: str) -> None:
    """Prints the rows, those of full prefill itself first, and what is recommended."""
    from service.lab.eval.grid import different

    screen = console()
    rows = [
        *map(_yardstick_cells, result.yardsticks),
        *({name: cell(row) for name, cell in COLUMNS.items()} for row in different(result.rows)),
    ]
    rows.sort(key=lambda row: bool(row.get("suite")))  # those of all questions first
    names = tuple(COLUMNS) if screen.width >= WIDE else NARROW
    shown = [name for name in names if any(row.get(name) for row in rows)]
    caption = "KL to full prefill in nats a token; x: how many yardsticks that is; others in percent"
    table = plain_table(
        *map(_column, shown),
        caption=caption if names is not NARROW else f"{caption}; --json and --html tell more",
        collapse_padding=True,
    )
    for row in rows:
        table.add_row(*(row.get(name, "") for name in shown))
    screen.print(table)
    if result.dropped:
        tell(f"{many(result.dropped, 'passage')} did not fit into the model's window and were left out.")
    tell(sentence, style="bold")


def _column(name: str) -> Column:
    is_text = name in ("suite", "policy", "codec", "against full")
    return Column(name, justify="left" if is_text else "right", no_wrap=name != "policy")


def _yardstick_cells(row: "YardstickRow") -> dict[str, str]:
    """Cells of what full prefill itself does in another prompt."""
    if row.kl is None:
        return {}
    return {"suite": row.suite, "policy": "yardstick", "KL": f"{row.kl:.4f}", "x": "1.00", "top-1": _share(row.top1)}


def _is_fixed(policy: str) -> bool:
    from service.lab.eval.grid import FIXED

    return policy in FIXED


def _share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def _number(text: str) -> float:
    from service.errors import Invalid

    try:
        return float(text)
    except ValueError:
        raise Invalid(f"--ratios: a number in [0, 1] is wanted, got {text!r}: write for example 0.05,0.15") from None


def _facts(
    settings: "Settings", *, suite: str, seed: int, result: "GridResult", choice: "PolicyChoice"
) -> dict[str, str]:
    drawn = {"seed": str(seed)} if suite == MULTIHOP else {}
    return {
        "model": settings.model,
        "suite": suite,
        **drawn,
        "questions": str(result.cases),
        "passages left out of the window": str(result.dropped),
        "recommendation": choice.sentence,
    }


@contextmanager
def _progress(total: int) -> Generator[Callable[[int], None]]:
    """A bar on a terminal, a line now and then elsewhere; on standard error, so that the output stays clean."""
    screen = console(stderr=True)
    last = time.monotonic()

    def line(done: int) -> None:
        nonlocal last
        if time.monotonic() - last >= LINE_S:
            last = time.monotonic()
            tell(f"{done} of {total} questions", err=True)

    if not screen.is_terminal:
        yield line
        return
    with Progress(BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=screen) as bar:
        task = bar.add_task("", total=total)
        yield lambda done: bar.update(task, completed=done)
