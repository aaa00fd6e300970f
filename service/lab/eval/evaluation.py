"""One evaluation: which questions are asked, half of them for fits, and where the choice is kept. Prints nothing."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from pathlib import Path

from blend.adopt.load import LoadedModel
from blend.fuse.policy import REPLAY, SCATTERED, policy_name, with_rule
from retriever.readers.reading import ReadingProblem
from service.app.compose_truth import compose_truth
from service.app.operating_point import FULL, OperatingPoint, operating_point, point_file
from service.errors import Invalid
from service.lab.eval.fitted_codec import CodecFitting
from service.lab.eval.fitted_rule import FittedRule, Fitting, halves
from service.lab.eval.grid import GridResult, run
from service.lab.eval.policy_choice import PolicyBounds, PolicyChoice, check_evidence, choose, save
from service.lab.questions.cases import Case, read_cases
from service.lab.questions.contexts import in_contexts
from service.lab.questions.corpus_cases import corpus_cases, read_corpus
from service.lab.questions.drawn_cases import SUITES, CutDocument, DrawnCases
from service.lab.questions.forms import FORMS
from service.lab.questions.suites import CONTENTS, in_forms, suites, variants
from service.settings import Settings, SettingsError

MULTIHOP = "multihop"  # the built-in suite
AUTO = Path("auto")
ALL = ["all"]

Progress = Callable[[int], AbstractContextManager[Callable[[int], None]]]  # over so many questions


@dataclass(frozen=True, slots=True)
class Questions:
    """What is asked: the built-in suite, a file, or of a corpus; of these two `size` may be 0, for all of a file."""

    suite: str
    corpus: Path | None
    seed: int
    size: int
    forms: Sequence[str]
    levels: Sequence[int]
    passages: Sequence[int]
    tokens: Sequence[int]

    def read(self, *, top_k: int) -> tuple[list[Case], list[Path], list[ReadingProblem]]:
        """The questions with their passages; the files of the corpus that were skipped, and what could not be read."""
        if self.suite == MULTIHOP and self.corpus is None:
            forms = [*FORMS, *CONTENTS] if self.forms == ALL else self.forms
            drawn = variants(self.levels, forms=forms, passages=self.passages, tokens=self.tokens)
            return in_contexts(suites(drawn, seed=self.seed, size=self.size)), [], []
        if self.passages or self.tokens:
            told = "--passages and --tokens are of the built-in suite: a file's questions have their own passages"
            raise Invalid(told)
        skipped, problems, most = list[Path](), list[ReadingProblem](), self.size or None
        names = [*SUITES] if self.suite == MULTIHOP else [each.strip() for each in self.suite.split(",") if each]
        if self.corpus is None:
            cases = read_cases(Path(self.suite))
        elif {*names} <= SUITES.keys():
            if most is None:
                raise Invalid(f"--n 0 is for files: say how many questions are drawn of {', '.join(names)}")
            documents, problems = read_corpus(self.corpus, on_skipped=skipped.append)
            drawing, most = DrawnCases([CutDocument.of(each) for each in documents], seed=self.seed), None
            cases = [drawing.draw(name, number) for name in names for number in range(self.size)]
        else:
            cases, problems = corpus_cases(self.corpus, Path(self.suite), top_k=top_k, on_skipped=skipped.append)
        cases, forms = in_contexts(cases)[:most], [*FORMS] if self.forms == ALL else self.forms
        return in_forms(cases, forms) if forms else cases, skipped, problems


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Questions that are asked at each point; where something is fitted, half of them are for that alone: `fits` the
    rule of `ask`, `fits_codec` each codec that packs all layers alike.
    """

    cases: Sequence[Case]
    points: Sequence[OperatingPoint]
    bounds: PolicyBounds
    answer_tokens: int
    fits: bool
    fits_codec: bool

    @property
    def compared(self) -> Sequence[Case]:
        return halves(self.cases)[1] if self.fits or self.fits_codec else self.cases

    def check(self, *, is_kept: bool) -> None:
        """Raises SuiteError for too few questions: for a fit, and for a choice that is kept."""
        compared = len(self.compared)
        if is_kept:
            check_evidence(compared, self.bounds.loss)

    def measure(
        self, model: LoadedModel, settings: Settings, *, progress: Progress, on_fit: Callable[[FittedRule, int], None]
    ) -> tuple[GridResult, PolicyChoice]:
        """Asks the questions, and chooses a point. Points that name `ask` alone get the model's rule; those that are no
        use with its layers are left out.
        """
        policy = self._fitted(model, progress, on_fit=on_fit) if self.fits else _in_force(settings, model)
        codecs = self._fitted_codecs(model, progress) if self.fits_codec else {}
        points = [
            replace(point, policy=with_rule(point.policy, default=policy), codec=codecs.get(point.codec, point.codec))
            for point in self.points
        ]
        layers = model.decoder.model_layers
        useless = (*(SCATTERED if layers.states else ()), *(() if layers.stretches else (REPLAY,)))
        points = [point for point in points if policy_name(point.policy) not in useless]
        if FULL.policy not in [point.policy for point in points]:
            points.append(FULL)  # it is asked anyway, and taken where nothing else is within the bounds
        with progress(len(self.compared)) as done:
            result = run(model, self.compared, points=points, answer_tokens=self.answer_tokens, progress=done)
        return result, choose(result.rows, result.yardsticks[0], bounds=self.bounds)

    def _fitted(self, model: LoadedModel, progress: Progress, *, on_fit: Callable[[FittedRule, int], None]) -> str:
        unlabelled = [replace(case, answers=()) for case in halves(self.cases)[0]]
        with (
            closing(Fitting(model, unlabelled, answer_tokens=self.answer_tokens)) as fitting,
            progress(fitting.rounds) as done,
        ):
            found = fitting.run(done)
        on_fit(found, len(unlabelled))
        return str(found.rule)

    def _fitted_codecs(self, model: LoadedModel, progress: Progress) -> dict[str, str]:
        """The codecs that are fitted, each with the one that takes its place."""
        unlabelled = [replace(case, answers=()) for case in halves(self.cases)[0]]
        with (
            closing(CodecFitting(model, unlabelled, answer_tokens=self.answer_tokens)) as fitting,
            progress(fitting.rounds) as done,
        ):
            return fitting.run([*dict.fromkeys(point.codec for point in self.points)], done)


def _in_force(settings: Settings, model: LoadedModel) -> str:
    """The policy that is served; that of the settings where the file with the model's is broken: it can be replaced."""
    try:
        return operating_point(settings, model.fingerprint.weights).policy
    except SettingsError:
        return settings.policy


def keep(choice: PolicyChoice, file: Path, *, settings: Settings, weights: str) -> tuple[Path, dict[str, str | float]]:
    """Writes the point into a settings file, or where it is in force for the model. Returns that, and what it wrote."""
    chosen, current = point_file(settings, weights), OperatingPoint(settings.policy, settings.ratio, settings.codec)
    if file == AUTO:  # what stands there is not in force where it is broken, and can be replaced
        file = chosen
        file.parent.mkdir(parents=True, exist_ok=True)
    else:
        current = operating_point(settings, weights)
    wrote = save(choice, file, current=current)
    if file == chosen:
        with closing(compose_truth(settings)) as truth:
            truth.keep_point(file)
    return file, wrote
