"""Suites on the made-up world by difficulty, passages, length, contents; any suite in other forms. Knows no model."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from service.lab.questions.cases import Case, SuiteError
from service.lab.questions.forms import FORMS
from service.lab.world.scene import MISSING, UNKNOWN, Scene, SceneQuestion, SceneShape, draw
from service.model.prompt_builder import PromptPassage, TurnPart, TurnParts

KINDS = ("topic", "role", "code")
LEVELS = {
    1: SceneShape((3, 4), (1, 3), (2, 2), KINDS, values=0.3),
    2: SceneShape((3, 6), (2, 5), (2, 3), KINDS, values=0.4, asides=(0, 3)),
    3: SceneShape((5, 8), (3, 6), (2, 4), (*KINDS, "renaming"), values=0.5, asides=(1, 4), rare=0.1),
}
TITLED = "titled"  # the form in which the service itself writes prompts
CONTENTS = ("history", "reversed", "fillers", "unlinked", UNKNOWN, MISSING)  # forms that change what a scene holds
UNANSWERED = (UNKNOWN, MISSING)  # no passage states it; one of the two passages that state it is missing
MOST_PASSAGES = 24
_LEAST_TOKENS = 100
_SENTENCE, _TITLE, _FRAME = 6.8, 6, 30  # tokens of a sentence, of a title, and of what stands around, about
_HISTORY = 2  # questions that were answered before


@dataclass(frozen=True, slots=True)
class Draw:
    """What is drawn. `form`: one of FORMS or CONTENTS; `passages`: so many, and `tokens`: about so long, if named."""

    level: int = 2
    form: str = TITLED
    passages: int | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise SuiteError(f"difficulty is one of {', '.join(map(str, LEVELS))}, got {self.level}")
        if self.form not in (*FORMS, *CONTENTS):
            raise SuiteError(f"no form is named {self.form!r}: choose of {', '.join((*FORMS, *CONTENTS))}")
        if self.passages is not None and not 2 <= self.passages <= MOST_PASSAGES:
            raise SuiteError(f"a prompt has 2 to {MOST_PASSAGES} passages, got {self.passages}")
        if self.tokens is not None and not _LEAST_TOKENS <= self.tokens <= 100 * MOST_PASSAGES:
            raise SuiteError(f"a prompt has {_LEAST_TOKENS} to {100 * MOST_PASSAGES} tokens, got {self.tokens}")

    def shape(self, random: Random) -> SceneShape:
        shape = LEVELS[self.level]
        if self.tokens is not None:
            shape = _long(shape, random, tokens=self.tokens)
        if self.passages is not None:
            shape = replace(shape, passages=(self.passages, self.passages))
        if self.form == "fillers":
            shape = replace(shape, fillers=shape.passages)
        return replace(shape, links=(0, 0)) if self.form == "unlinked" else shape


DEFAULT_DRAW = Draw()


def multihop(*, seed: int, size: int, drawn: Draw = DEFAULT_DRAW, suite: str = "") -> list[Case]:
    """Questions on the made-up world; every second one needs two passages, where there are links and answers.

    A longer suite begins with the shorter. Another form asks the same questions of the same scenes, where it can.
    """
    return [
        replace(_case(Random(f"{seed}/{drawn.level}/{number}"), drawn, needs=1 + number % 2), suite=suite)
        for number in range(size)
    ]


def variants(
    levels: Sequence[int], *, forms: Sequence[str], passages: Sequence[int], tokens: Sequence[int]
) -> dict[str, Draw]:
    """Every difficulty, then each other form, number of passages and length at the first difficulty, by name."""
    if not levels:
        raise SuiteError(f"at least one difficulty is wanted: choose of {', '.join(map(str, LEVELS))}")
    first = levels[0]
    drawn = {f"difficulty {level}": Draw(level) for level in levels}
    drawn |= {form: Draw(first, form) for form in forms if form != TITLED}
    drawn |= {f"{number} passages": Draw(first, passages=number) for number in passages}
    return drawn | {f"{number} tokens": Draw(first, tokens=number) for number in tokens}


def suites(drawn: Mapping[str, Draw], *, seed: int, size: int) -> list[Case]:
    """So many questions of each draw, one suite behind the other."""
    return [case for name, each in drawn.items() for case in multihop(seed=seed, size=size, drawn=each, suite=name)]


def in_forms(cases: Sequence[Case], forms: Sequence[str]) -> list[Case]:
    for form in forms:
        if form not in FORMS:
            raise SuiteError(f"no form of a file's questions is named {form!r}: choose of {', '.join(FORMS)}")
    return [replace(case, form=FORMS[form], suite=form) for form in forms for case in cases]


def passages(scene: Scene) -> tuple[PromptPassage, ...]:
    return tuple(PromptPassage(passage.text, passage.title) for passage in scene.passages)


def _case(random: Random, drawn: Draw, *, needs: int) -> Case:
    while True:
        scene = draw(random, drawn.shape(random))
        if drawn.form == MISSING:
            scene = _without_needed(random, scene)
        asked = scene.unanswered if drawn.form in UNANSWERED else scene.questions
        wanted = 0 if drawn.form in UNANSWERED else 1 if drawn.form == "unlinked" else needs
        fitting = [question for question in asked if len(question.needs) == wanted]
        if fitting:
            question = random.choice(fitting)
            shown = scene.reversed() if drawn.form == "reversed" else scene
            before = tuple(_history(scene, question)) if drawn.form == "history" else ()
            form = FORMS.get(drawn.form, FORMS[TITLED])
            told = shown.questions[scene.questions.index(question)].needs if question.needs else ()
            foreign = tuple([page for page in range(len(shown.passages)) if page not in told])
            return Case(question.text, passages(shown), (question.answer,), wanted, form, before, foreign=foreign)


def _without_needed(random: Random, scene: Scene) -> Scene:
    """The scene without one of two passages that a question needs; of what nobody answers, with such questions only."""
    linked = scene.linked_pages()
    left = scene.without(random.choice(linked)) if linked else scene
    return replace(left, unanswered=tuple(each for each in left.unanswered if each.kind == MISSING))


def _history(scene: Scene, asked: SceneQuestion) -> Iterator[TurnParts]:
    """Other questions of the scene, with their answers."""
    for question in [each for each in scene.questions if each != asked][:_HISTORY]:
        yield TurnParts("user", (TurnPart(question.text),))
        yield TurnParts("assistant", (TurnPart(question.answer),))


def _long(shape: SceneShape, random: Random, *, tokens: int) -> SceneShape:
    """The shape with enough sentences for so many tokens, in passages of 45 to 90 tokens; longer ones if too many."""
    pages = random.randint(max(3, min(16, tokens // 90)), max(4, min(MOST_PASSAGES, tokens // 45)))
    sentences = ((tokens - _FRAME) / pages - _TITLE) / _SENTENCE
    facts, asides = max(2, round(0.7 * sentences)), max(1, round(0.3 * sentences))
    return replace(shape, passages=(pages, pages), facts=(facts - 1, facts + 1), asides=(asides - 1, asides + 1))
