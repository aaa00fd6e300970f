"""The command `kvweave eval`: options in, a table, JSON or a page out. Measures and chooses nothing itself."""

import json
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from service.commands.console import console, many, status, tell
from service.commands.options import AsJson, check_folders, codecs, listed, policies, settings_with, whole_numbers
from service.commands.shown_progress import tell_unread
from service.lab.commands.shown_grid import show_grid

if TYPE_CHECKING:
    from blend.adopt.load import LoadedModel
    from service.app.operating_point import OperatingPoint
    from service.lab.eval.grid import GridResult
    from service.lab.eval.policy_choice import PolicyChoice
    from service.lab.questions.cases import Case
    from service.settings import Settings

MULTIHOP = "multihop"  # the built-in suite
AUTO = Path("auto")
ALL = "all"
LINES = 20  # of progress, where there is no terminal

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
    bool,
    grid_option("--fit", help="Fit the policy `ask` to the model on half of the questions; the others compare."),
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
    from service.lab.eval.grid import grid, run
    from service.lab.eval.policy_choice import PolicyBounds, check_evidence, choose

    check_folders(html, save_to)
    points = grid(policies and listed(policies), [_number(each) for each in listed(ratios)], codecs=listed(codecs))
    settings, drawn = settings_with(model), _Drawn(seed, n, difficulty, forms, passages, tokens)
    asked = _cases(suite, corpus, drawn=drawn, top_k=max(1, settings.top_k))
    to_fit, cases = _halves(asked) if fit else ([], asked)
    if save_to:
        check_evidence(len(cases), bound)
    loaded = _loaded(settings)
    rule = _fitted(loaded, to_fit, answer_tokens=answer_tokens) if fit else _in_force(settings, loaded)
    with _progress(len(cases)) as progress:
        result = run(loaded, cases, points=_by_rule(rule, points), answer_tokens=answer_tokens, progress=progress)
    choice = choose(result.rows, result.yardsticks[0], bounds=PolicyBounds(bound, yardsticks))
    facts = _facts(settings, suite=suite, seed=seed, result=result, choice=choice)
    if save_to:
        _save(choice, save_to, settings=settings, weights=loaded.fingerprint.weights)
    _report(result, choice, facts=facts, html=html, as_json=as_json)


def _loaded(settings: "Settings") -> "LoadedModel":
    from service.app.composition import compose_model

    with status(f"loading {settings.model}"):
        return compose_model(settings)


def _halves(cases: "list[Case]") -> "tuple[list[Case], list[Case]]":
    from service.lab.eval.fitted_rule import halves

    return halves(cases)


def _by_rule(policy: str, points: "list[OperatingPoint]") -> "list[OperatingPoint]":
    """The points, those that name this policy without a rule by its own."""
    from blend.fuse.policy import with_rule

    return [replace(point, policy=with_rule(point.policy, default=policy)) for point in points]


def _in_force(settings: "Settings", loaded: "LoadedModel") -> str:
    """The policy that is served; that of the settings where the file with the model's is broken: it can be replaced."""
    from service.app.operating_point import operating_point
    from service.settings import SettingsError

    try:
        return operating_point(settings, loaded.fingerprint.weights).policy
    except SettingsError:
        return settings.policy


def _fitted(loaded: "LoadedModel", cases: "list[Case]", *, answer_tokens: int) -> str:
    """The policy `ask` with its rule for the model. Says it, and what the rule where none is fitted would do."""
    from service.lab.eval.fitted_rule import Fitting

    unlabelled = [replace(case, answers=()) for case in cases]
    with (
        closing(Fitting(loaded, unlabelled, answer_tokens=answer_tokens)) as fitting,
        _progress(fitting.rounds) as progress,
    ):
        found = fitting.run(progress)
    tell(
        f"Fitted {found.rule} on {many(len(cases), 'question')}: KL {found.kl:.4f} at {found.ratio:.0%}, "
        f"{found.unfitted_kl:.4f} by the rule that is taken where none is fitted.",
        err=True,
    )
    return str(found.rule)


def _report(
    result: "GridResult", choice: "PolicyChoice", *, facts: dict[str, str], html: Path | None, as_json: bool
) -> None:
    """Writes the page if one is wanted, and prints JSON or a table."""
    from service.lab.eval.report_page import report_page

    if html:
        html.write_text(report_page(result, title="Quality against full prefill", facts=facts), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps({**facts, **asdict(result), "choice": asdict(choice)}, indent=2, allow_nan=False))
    else:
        show_grid(result, choice.sentence)


def _save(choice: "PolicyChoice", file: Path, *, settings: "Settings", weights: str) -> None:
    from service.app.compose_truth import compose_truth
    from service.app.operating_point import OperatingPoint, operating_point, point_file
    from service.lab.eval.policy_choice import save

    if file == AUTO:  # what stands there is not in force where it is broken, and can be replaced
        file, current = point_file(settings, weights), OperatingPoint(settings.policy, settings.ratio, settings.codec)
        file.parent.mkdir(parents=True, exist_ok=True)
    else:
        current = operating_point(settings, weights)
    is_chosen = file == point_file(settings, weights)
    wrote = save(choice, file, current=current)
    if is_chosen:
        with closing(compose_truth(settings)) as truth:
            truth.keep_point(file)
    tell(f"Saved {', '.join(f'{name} = {value}' for name, value in wrote.items())} in {file}.", err=True)


@dataclass(frozen=True, slots=True)
class _Drawn:
    """What the options say of the questions; lists are texts with commas."""

    seed: int
    size: int
    levels: str
    forms: str
    passages: str
    tokens: str

    def cases(self) -> "list[Case]":
        from service.lab.questions.forms import FORMS
        from service.lab.questions.suites import CONTENTS, suites, variants

        forms = [*FORMS, *CONTENTS] if self.forms == ALL else listed(self.forms)
        levels = whole_numbers("--difficulty", self.levels)
        passages, tokens = whole_numbers("--passages", self.passages), whole_numbers("--tokens", self.tokens)
        drawn = variants(levels, forms=forms, passages=passages, tokens=tokens)
        return suites(drawn, seed=self.seed, size=self.size)


def _cases(suite: str, corpus: Path | None, *, drawn: _Drawn, top_k: int) -> "list[Case]":
    from retriever.readers.reading import ReadingProblem
    from service.errors import Invalid
    from service.lab.questions.cases import read_cases
    from service.lab.questions.contexts import in_contexts
    from service.lab.questions.corpus_cases import corpus_cases, read_corpus
    from service.lab.questions.drawn_cases import SUITES, CutDocument, DrawnCases
    from service.lab.questions.forms import FORMS
    from service.lab.questions.suites import in_forms

    if suite == MULTIHOP and corpus is None:
        return in_contexts(drawn.cases())
    if drawn.passages or drawn.tokens:
        raise Invalid("--passages and --tokens are of the built-in suite: a file's questions have their own passages")
    skipped, problems, most = list[Path](), list[ReadingProblem](), drawn.size or None
    names = [*SUITES] if suite == MULTIHOP else listed(suite)
    if corpus is None:
        cases = read_cases(Path(suite))
    elif set(names) <= SUITES.keys():
        if most is None:
            raise Invalid(f"--n 0 is for files: say how many questions are drawn of {', '.join(names)}")
        documents, problems = read_corpus(corpus, on_skipped=skipped.append)
        drawing, most = DrawnCases([CutDocument.of(each) for each in documents], seed=drawn.seed), None
        cases = [drawing.draw(name, number) for name in names for number in range(drawn.size)]
    else:
        cases, problems = corpus_cases(corpus, Path(suite), top_k=top_k, on_skipped=skipped.append)
    tell_unread(skipped, problems)
    cases = in_contexts(cases)[:most]
    forms = [*FORMS] if drawn.forms == ALL else listed(drawn.forms)
    return in_forms(cases, forms) if forms else cases


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
    if not screen.is_terminal:
        yield lambda done: None if done % (total // LINES or 1) else tell(f"{done} of {total} questions", err=True)
        return
    with Progress(BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=screen) as bar:
        task = bar.add_task("", total=total)
        yield lambda done: bar.update(task, completed=done)
