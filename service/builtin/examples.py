"""Scenes as training examples: one context, then several questions that see the context and themselves only."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from blend.tokens import Tokenizer
from service.prompts import ASK, Titled, assemble
from service.world.scene import Fact, Passage, Question, Scene

IGNORED = -100  # torch's own mark of a target that does not count


@dataclass(frozen=True, slots=True)
class Batch:
    """`answers`: of each question the row, the place of its answer's first target, and its kind."""

    ids: Tensor  # (B, T)
    positions: Tensor  # (B, T)
    mask: Tensor  # (B, 1, T, T), True where a token sees another
    targets: Tensor  # (B, T), what follows each token and is known from what stands before, or IGNORED
    answers: tuple[tuple[int, slice, str], ...]
    hints: Tensor  # (hints, 5): row, place, and the subject, value and relation that are known there, or IGNORED


@dataclass(slots=True)
class _Row:
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
        self._tokenizer = tokenizer
        frame = assemble(tokenizer, [Titled("")], question="")
        bare = assemble(tokenizer, [Titled("")], question="", system="")
        self._prefixes = (frame.prefix, frame.prefix, bare.prefix)
        self._ask = tokenizer.encode_text(ASK.rstrip())
        self._tail = list(frame.suffix[-2:])
        self._end = frame.suffix[-2]
        [self._stop] = tokenizer.encode_text(".")
        self._open, self._close = tokenizer.encode_text(" (")[0], tokenizer.encode_text(")")[0]

    def batch(self, random: Random, scenes: list[Scene], *, questions: int) -> Batch:
        """All scenes side by side, with at most so many questions of each."""
        rows = [self._row(random, scene, questions=questions) for scene in scenes]
        size = max(len(row.ids) for row in rows)
        ids, positions, targets, owners = (
            torch.tensor([getattr(row, name) + [empty] * (size - len(row.ids)) for row in rows])
            for name, empty in (("ids", self._end), ("positions", 0), ("targets", IGNORED), ("owners", -1))
        )
        mine = owners[:, :, None] == owners[:, None, :]
        mask = (mine | (owners[:, None, :] == 0)).tril()
        hints = torch.tensor([(i, *hint) for i, row in enumerate(rows) for hint in row.hints]).reshape(-1, 5)
        answers = tuple((i, place, kind) for i, row in enumerate(rows) for place, kind in row.answers)
        return Batch(ids, positions, mask[:, None], targets, answers, hints)

    def _row(self, random: Random, scene: Scene, *, questions: int) -> _Row:
        row = _Row([], [], [], [], [], [])
        self._add(row, list(random.choice(self._prefixes)), owner=0)
        titled = random.random() < 0.5
        for passage, facts in zip(scene.passages, scene.facts, strict=True):
            gap = Titled("", passage.title if titled else "").gap
            ids = self._tokenizer.encode_text(passage.text)
            row.hints += self._told(ids, passage, facts=facts, start=len(row.ids))
            self._add(row, ids, owner=0, learn=self._restated(ids))
            self._add(row, self._tokenizer.encode_text(gap), owner=0)
        context = len(row.ids)
        for owner, question in enumerate(_chosen(random, scene.questions, most=questions), 1):
            ask = [*self._ask, *self._tokenizer.encode_text(" " + question.text), *self._tail]
            answer = [*self._tokenizer.encode_text(question.answer), self._end]
            first = len(row.ids) + len(ask) - 1
            self._add(row, ask + answer, owner=owner, start=context, learn=range(len(ask), len(ask) + len(answer)))
            row.answers.append((slice(first, first + len(answer)), question.kind))
            if question.relation is not None:
                row.hints.append((first, self._first(question.about), IGNORED, question.relation))
        return row

    def _add(
        self, row: _Row, ids: list[int], *, owner: int, start: int | None = None, learn: range | list[int] = range(0)
    ) -> None:
        begin = len(row.ids)
        first = begin if start is None else start
        row.ids += ids
        row.positions += range(first, first + len(ids))
        row.targets += [IGNORED] * len(ids)
        row.owners += [owner] * len(ids)
        for place in learn:
            row.targets[begin + place - 1] = ids[place]

    def _told(
        self, ids: list[int], passage: Passage, *, facts: Sequence[Fact], start: int
    ) -> Iterator[tuple[int, int, int, int]]:
        """At the full stop of every fact: who it is about, and what is said."""
        said = {fact.sentence: fact for fact in facts}
        stops = [place for place, token in enumerate(ids) if token == self._stop]
        for place, sentence in zip(stops, re.findall(r"[^.]+\.", passage.text), strict=True):
            fact = said.get(sentence.strip())
            if fact is not None:
                yield start + place, self._first(fact.subject), self._first(fact.value), fact.relation

    def _first(self, name: str) -> int:
        """The first token of a name behind a space."""
        return self._tokenizer.encode_text(" " + name)[0]

    def _restated(self, ids: list[int]) -> list[int]:
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


def _chosen(random: Random, questions: tuple[Question, ...], *, most: int) -> list[Question]:
    """Those that need two passages first, in a drawn order."""
    drawn = random.sample(questions, len(questions))
    return sorted(drawn, key=lambda question: len(question.needs) == 1 and random.random() < 0.7)[:most]
