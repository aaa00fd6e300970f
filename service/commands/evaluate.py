"""The command `kvweave eval`: options in, a table, JSON or a page out. Measures and chooses nothing itself."""

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.table import Table

from service.evaluate import MULTIHOP
from service.evaluate.point import point_file
from service.settings import Settings, load_settings

if TYPE_CHECKING:
    from service.evaluate.cases import Case
    from service.evaluate.choice import Choice
    from service.evaluate.grid import Result, Row

COLUMNS = (
    *("policy", "ratio", "codec", "exact", "one", "two", "F1", "agrees"),
    *("KL", "loss", "ttft ms", "sooner", "B/token"),
)
WIDTH = 112  # of the table
AUTO = Path("auto")
EVERY = 50  # questions between two lines of progress where there is no terminal

Suite = Annotated[
    str,
    typer.Option(help=f"{MULTIHOP}, or a JSON or JSONL file of questions with passages, and with answers if known."),
]
Corpus = Annotated[Path | None, typer.Option(help="A file or a folder that the suite's questions are asked of.")]
Seed = Annotated[int, typer.Option(help="What the built-in suite is drawn from.")]
Count = Annotated[int, typer.Option("--n", help="How many questions; 0 for all of a file.", min=0)]
Difficulty = Annotated[int, typer.Option(help="Of the built-in suite: 1 to 3.")]
Policies = Annotated[str, typer.Option(help="Policies, with commas.")]
Ratios = Annotated[str, typer.Option(help="Shares of cached tokens to recompute, with commas.")]
Codecs = Annotated[str, typer.Option(help="Codecs, with commas.")]
AnswerTokens = Annotated[
    int, typer.Option(help="Tokens of the longest answer, and of what divergence looks at.", min=1)
]
Named = Annotated[
    str, typer.Option("--model", help="Hub name or folder; KVWEAVE_MODEL by default.", show_default=False)
]
Bound = Annotated[float, typer.Option(help="How much may be lost against full prefill; 0.01 is one percent.")]
Saved = Annotated[
    Path | None,
    typer.Option(
        "--save", help="Write the recommended point into this settings file, or `auto`: serve takes it for this model."
    ),
]
Html = Annotated[Path | None, typer.Option("--html", help="Write a page with plots.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


def evaluate(
    *,
    suite: Suite = MULTIHOP,
    corpus: Corpus = None,
    seed: Seed = 0,
    n: Count = 200,
    difficulty: Difficulty = 2,
    policies: Policies = "full,reuse,heads,deviation,hybrid",
    ratios: Ratios = "0.05,0.15,0.3",
    codecs: Codecs = "lossless,q4",
    answer_tokens: AnswerTokens = 16,
    model: Named = "",
    bound: Bound = 0.01,
    save_to: Saved = None,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Measure quality against full prefill, and recommend an operating point.

    Example: kvweave eval --suite questions.jsonl --policies full,hybrid --ratios 0.1,0.2 --codecs q4
    """
    from service.composition import compose_model
    from service.evaluate.choice import choose, save
    from service.evaluate.grid import grid, run
    from service.evaluate.page import page

    points = grid(_listed(policies), [_number(each) for each in _listed(ratios)], codecs=_listed(codecs))
    cases = _cases(suite, corpus, seed=seed, size=n, level=difficulty)
    settings = load_settings()
    settings = settings.model_copy(update={"model": model}) if model else settings
    loaded = compose_model(settings)
    with _progress(len(cases)) as progress:
        result = run(loaded, cases, points=points, answer_tokens=answer_tokens, progress=progress)
    choice = choose(result.rows, bound=bound)
    facts = _facts(settings, suite=suite, seed=seed, result=result, choice=choice)
    if save_to == AUTO:
        save_to = point_file(settings, loaded.fingerprint.weights)
        save_to.parent.mkdir(parents=True, exist_ok=True)
    if save_to:
        save(choice, save_to)
    if html:
        html.write_text(page(result, title="Quality against full prefill", facts=facts), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps({**facts, **asdict(result), "choice": asdict(choice)}, indent=2, allow_nan=False))
    else:
        _show(result, choice)


def _cases(suite: str, corpus: Path | None, *, seed: int, size: int, level: int) -> "list[Case]":
    from service.evaluate.cases import multihop, read_cases
    from service.evaluate.corpus import corpus_cases

    if suite == MULTIHOP and corpus is None:
        return multihop(seed=seed, size=size, level=level)
    if corpus is None:
        return read_cases(Path(suite))[: size or None]
    cases, problems = corpus_cases(corpus, Path(suite))
    for problem in problems:
        typer.echo(f"not read: {problem.place}: {problem.reason}", err=True)
    return cases[: size or None]


def _listed(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"a ratio is a number in [0, 1], got {text!r}") from None


def _facts(settings: Settings, *, suite: str, seed: int, result: "Result", choice: "Choice") -> dict[str, str]:
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
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done: typer.echo(f"{done} of {total} questions", err=True) if done % EVERY == 0 else None
        return
    with Progress(BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task("", total=total)
        yield lambda done: bar.update(task, completed=done)


def _show(result: "Result", choice: "Choice") -> None:
    from service.evaluate.grid import different

    caption = "exact match: of all, of one-chunk and of two-chunk questions, in percent; KL in nats a token"
    table = Table(*COLUMNS, box=SIMPLE_HEAD, caption=caption, pad_edge=False, collapse_padding=True)
    for row in different(result.rows):
        table.add_row(*_cells(row))
    console = Console()
    console.width = max(console.width, WIDTH)
    console.print(table)
    if result.dropped:
        typer.echo(f"{result.dropped} passages did not fit into the model's window and were left out.")
    typer.echo(choice.sentence)


def _cells(row: "Row") -> tuple[str, ...]:
    """Cells of the table; what a policy does not look at stays empty."""
    from service.evaluate.grid import FIXED

    def share(value: float | None) -> str:
        return "" if value is None else f"{100 * value:.1f}"

    return (
        row.policy,
        "" if row.policy in FIXED else f"{row.ratio:g}",
        "" if row.policy == "full" else row.codec,
        share(row.exact_match),
        share(row.exact_match_one_chunk),
        share(row.exact_match_two_chunk),
        share(row.f1),
        share(row.agreement),
        f"{row.kl:.4f}",
        f"{share(row.loss)} {row.verdict}",
        f"{row.ttft_ms:.1f}",
        f"{row.ttft_speedup:.2f}",
        "" if row.policy == "full" else f"{row.bytes_per_token:,.0f}",
    )
