"""Scenes as training examples: one context, then several questions that see the context and themselves only."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from blend.text.tokenizer import Tokenizer
from service.lab.questions.forms import FORMS, Form
from service.lab.world.scene import MISSING, UNKNOWN, Fact, Scene, ScenePassage, SceneQuestion
from service.model.prompt_builder import SYSTEM, PromptBuilder, PromptPassage, TurnPart, TurnParts

IGNORED = -100  # torch's own mark of a target that does not count

LITTLE = "the of a in is was what who where how many which and does to has it on for with by at from"
PLAIN = (FORMS["titled"], FORMS["untitled"])
SYSTEMS = (
    *(SYSTEM, SYSTEM, "", SYSTEM, "Use the context to answer the question.", "You are a helpful assistant."),
    "Answer from the documents alone. Say unknown if they do not tell.",
)
# What may stand before all passages, before each, behind each, between two, and behind the last one.
PIECES = (
    ("", "", "Documents:\n", "Context:\n\n", "Use what follows.\n\n"),
    (
        *("", "", "[{number}] ", "{number}. ", "({number}) ", "Document {number}: ", "Passage {number}\n", "<doc>"),
        *("- ", "Source: {title}\n", "# {title}\n", "[{title}] "),
    ),
    ("\n\n", "\n", " ", "", "</doc>\n", "\n({title})\n\n", " [{number}]\n", "\n---\n"),
    ("", "", "\n", " ", "\n\n"),
    ("", "\n", "\n\n", "---\n"),
)
ASKS = (
    *("Question: {question}", "Question: {question}", "{question}", "\n{question}", "Q: {question}\nA:"),
    "Question: {question}\nAnswer:",
)


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of equal length. `answers`: each question's row, the places of its answer's targets, and its kind."""

    ids: Tensor  # (B, T)
    positions: Tensor  # (B, T)
    mask: Tensor  # (B, 1, T, T), True where a token sees another
    targets: Tensor  # (B, T), what follows each token and is known from what stands before, or IGNORED
    owners: Tensor  # (B, T), 0 for the context, then the number of the question; -1 behind a row's end
    answers: tuple[tuple[int, slice, str], ...]
    hints: Tensor  # (hints, 5): row, place, and the subject, value and relation that are known there, or IGNORED


@dataclass(frozen=True, slots=True)
class Mixture:
    """Shares of examples: in a form that is drawn, in reversed order, behind a history, with a passage of babble.

    `missing`: without one of two passages that a question needs. `unknown`: of questions, those that nothing answers.
    """

    forms: float = 0.0
    reversed: float = 0.0
    history: float = 0.0
    babble: float = 0.0
    unknown: float = 0.0
    missing: float = 0.0


@dataclass(slots=True)
class ExampleRow:
    """One example that is being written. `owners`: 0 for the context, then the number of the question.

    `hints`: place, subject, value and relation; the value is IGNORED where the place does not know it.
    """

    ids: list[int]
    positions: list[int]
    targets: list[int]
    owners: list[int]
    answers: list[tuple[slice, str]]
    hints: list[tuple[int, int, int, int]]


class Examples:
    """Writes scenes as the service writes prompts."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._prompt_builder = PromptBuilder(tokenizer)
        self._tokenizer = tokenizer
        [self._end] = tokenizer.stop_ids
        [self._stop] = tokenizer.encode_text(".")
        self._open, self._close = tokenizer.encode_text(" (")[0], tokenizer.encode_text(")")[0]

    def batch(self, rows: Sequence[ExampleRow]) -> Batch:
        """Puts rows side by side; shorter ones are filled up."""
        size = max(len(row.ids) for row in rows)
        ids, positions, targets, owners = (
            torch.tensor([getattr(row, name) + [empty] * (size - len(row.ids)) for row in rows])
            for name, empty in (("ids", self._end), ("positions", 0), ("targets", IGNORED), ("owners", -1))
        )
        mine = owners[:, :, None] == owners[:, None, :]
        mask = (mine | (owners[:, None, :] == 0)).tril()
        hints = torch.tensor([(i, *hint) for i, row in enumerate(rows) for hint in row.hints]).reshape(-1, 5)
        answers = tuple((i, place, kind) for i, row in enumerate(rows) for place, kind in row.answers)
        return Batch(ids, positions, mask[:, None], targets, owners, answers, hints)

    def row(self, random: Random, scene: Scene, *, questions: int, mixture: Mixture) -> ExampleRow:
        """One scene with at most so many questions, in a form that is drawn."""
        if random.random() < mixture.reversed:
            scene = scene.reversed()
        if mixture.missing and random.random() < mixture.missing and (linked := scene.linked_pages()):
            scene = scene.without(random.choice(linked))
        form = drawn_form(random) if random.random() < mixture.forms else random.choice(PLAIN)
        if random.random() < mixture.babble:
            scene = _babbled_into(random, scene)
        system = random.choice(SYSTEMS if mixture.forms else SYSTEMS[:3])
        before = list(_history(random, scene)) if random.random() < mixture.history else []
        shown = [PromptPassage(passage.text, passage.title) for passage in scene.passages]
        pieces = list(self._prompt_builder.rows(form.turns(shown, question="", system=system, before=before)))
        asking = max(at for at, (_, part) in enumerate(pieces) if part is not None)
        row = ExampleRow([], [], [], [], [], [])
        for ids, part in pieces[:asking]:
            if part is not None and part.passage is not None:
                row.hints += self._hints(ids, scene, page=part.passage, start=len(row.ids))
                self._add(row, ids, owner=0, learn=self._restated(ids))
            else:
                self._add(row, ids, owner=0)
        tail = [token for ids, _ in pieces[asking + 1 :] for token in ids]
        self._ask(row, _chosen(random, scene, most=questions, mixture=mixture), form=form, tail=tail)
        return row

    def _ask(self, row: ExampleRow, questions: Sequence[SceneQuestion], *, form: Form, tail: Sequence[int]) -> None:
        context = len(row.ids)
        for owner, question in enumerate(questions, 1):
            ask = [*self._tokenizer.encode_text(form.ask.replace("{question}", question.text)), *tail]
            answer = [*self._tokenizer.encode_text(question.answer), self._end]
            first = len(row.ids) + len(ask) - 1
            self._add(row, ask + answer, owner=owner, start=context, learn=range(len(ask), len(ask) + len(answer)))
            row.answers.append((slice(first, first + len(answer)), question.kind))
            if question.relation is not None:
                row.hints.append((first, self._first(question.about), IGNORED, question.relation))

    def _add(
        self, row: ExampleRow, ids: Sequence[int], *, owner: int, start: int | None = None, learn: Sequence[int] = ()
    ) -> None:
        begin = len(row.ids)
        first = begin if start is None else start
        row.ids += ids
        row.positions += range(first, first + len(ids))
        row.targets += [IGNORED] * len(ids)
        row.owners += [owner] * len(ids)
        for place in learn:
            row.targets[begin + place - 1] = ids[place]

    def _hints(self, ids: Sequence[int], scene: Scene, *, page: int, start: int) -> Iterator[tuple[int, int, int, int]]:
        """Yields a hint at each fact's full stop: who it is about, what is said; in its own words if these are new."""
        facts = {fact.sentence: fact for fact in scene.facts[page]}
        stops = [place for place, token in enumerate(ids) if token == self._stop]
        for place, sentence in zip(stops, re.findall(r"[^.]+\.", scene.passages[page].text), strict=True):
            fact = facts.get(sentence.strip())
            if fact is not None:
                subject, value = (_known(name, fact, page=page) for name in (fact.subject, fact.value))
                yield start + place, self._first(subject), self._first(value), fact.relation

    def _first(self, name: str) -> int:
        """The first token of a name behind a space."""
        return self._tokenizer.encode_text(" " + name)[0]

    def _restated(self, ids: Sequence[int]) -> list[int]:
        """Places of what stands in parentheses: it is known from what stands before."""
        places: list[int] = []
        inside = False
        for place, token in enumerate(ids):
            if token == self._open:
                inside = True
            elif inside:
                places.append(place)
                inside = token != self._close
        return places


def drawn_form(random: Random) -> Form:
    """A form that applications use, or one that is made of pieces of such forms."""
    if random.random() < 0.5:
        return random.choice(list(FORMS.values()))
    ask, role = random.choice(ASKS), "user" if random.random() < 0.7 else "system"
    if random.random() < 0.3:
        keys = [f'"{random.choice(names)}": ' for names in (("title", "source", "id"), ("text", "content", "passage"))]
        lead = "{" + (keys[0] + '"{title}", ' if random.random() < 0.5 else "") + keys[1] + '"'
        opening, ending = random.choice((("[", "]\n\n"), ('{"passages": [', "]}\n"), ('{"context": [', "]}\n\n")))
        return Form(opening, lead, '"}', random.choice((", ", ",\n", ",")), ending, ask, role, is_json=True)
    opening, lead, close, between, ending = (random.choice(pieces) for pieces in PIECES)
    return Form(opening, lead, close, between, ending, ask, role)


def _babbled_into(random: Random, scene: Scene) -> Scene:
    """The scene with a passage that says nothing in any language, as its first or last."""
    text = " ".join(babble(random, random.randint(3, 12)) + "." for _ in range(random.randint(1, 4)))
    passage = ScenePassage(babble(random, 2), text)
    return scene.filled({random.choice((0, len(scene.passages))): [passage]})


def _known(name: str, fact: Fact, *, page: int) -> str:
    """A name as it is understood on this page: the other name itself where it is explained later."""
    alias = fact.alias
    return alias.word if alias is not None and alias.page > page and name == alias.meaning else name


def _history(random: Random, scene: Scene) -> Iterator[TurnParts]:
    """Turns of a chat before the question: other questions, and their answers."""
    asked = [*scene.questions, *scene.unanswered[:1]]
    for question in random.sample(asked, min(len(asked), random.randint(1, 3))):
        yield TurnParts("user", (TurnPart(question.text),))
        yield TurnParts("assistant", (TurnPart(question.answer),))


def _chosen(random: Random, scene: Scene, *, most: int, mixture: Mixture) -> list[SceneQuestion]:
    """The questions to ask: first those that need two passages, in a drawn order; some that cannot be answered."""
    drawn = random.sample(scene.questions, len(scene.questions))
    answered = sorted(drawn, key=lambda question: len(question.needs) == 1 and random.random() < 0.7)[:most]
    count = sum(random.random() < mixture.unknown for _ in answered)
    without = [babbled(random)] if random.random() < mixture.babble else []
    unanswered = random.sample(scene.unanswered, len(scene.unanswered))
    return [*answered, *sorted(unanswered, key=lambda question: question.kind != MISSING)[:count], *without]


def babbled(random: Random) -> SceneQuestion:
    """A question in no language."""
    return SceneQuestion(babble(random, random.randint(3, 10)) + "?", "", UNKNOWN, UNKNOWN, ())


def babble(random: Random, words: int) -> str:
    """Text of no language and of no meaning in the world."""
    made = ("".join(random.choices("aeiourstlnmdbkpgh", k=random.randint(2, 9))) for _ in range(words))
    mixed = [random.choice(LITTLE.split()) if random.random() < 0.4 else word for word in made]
    return " ".join(word.capitalize() if not at or random.random() < 0.1 else word for at, word in enumerate(mixed))
