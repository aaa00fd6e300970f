"""Prompts, drawn of a corpus' articles that are cut into chunks of about so many tokens, and their variants."""

from dataclasses import dataclass, replace
from random import Random

from service.lab.questions.cases import Case
from service.lab.questions.contexts import in_contexts
from service.lab.questions.drawn_cases import IN_ORDER, CutDocument, DrawnCases
from service.lab.questions.drawn_cases import Shape as CaseShape
from service.lab.questions.variants import Variants
from service.model.prompt_builder import PromptPassage
from tests.bench.real.articles import Article, Prose, TokenCounts
from tests.bench.real.results import REORDERED

MOST_OWN = 12  # chunks of the article that is asked of
LEAST = 4  # passages
OF_GAP = 3  # tokens between two passages, about
REPLACED, LEFT_OUT = "one replaced", "one left out"
BESIDE_EVERY = 4  # prompts: what stands beside the yardstick, and is no part of it, is measured of some


@dataclass(frozen=True, slots=True)
class Shape:
    """How long prompts are and their chunks, in tokens, about; how own chunks stand; what corpus they are of."""

    tokens: int = 1000
    chunk: int = 80
    order: str = IN_ORDER
    corpus: str = ""

    @property
    def passages(self) -> int:
        """How many chunks a prompt has."""
        return max(LEAST, self.tokens // (self.chunk + OF_GAP))


class Material:
    """Draws prompts. Those of one are of one corpus, and fillers are of its articles that no prompt asks of."""

    def __init__(self, prose: Prose, counts: TokenCounts, seed: int) -> None:
        self.prose = prose
        self._counts = counts
        self._seed = seed
        self._drawing: dict[Shape, tuple[DrawnCases, list[PromptPassage]]] = {}

    def draw(self, suite: str, shape: Shape, number: int) -> Case:
        """The prompt of this number, always the same for one seed."""
        drawing, pool = self._of(shape, number)
        return in_contexts([drawing.draw(suite, number)], pool)[0]

    def spare(self, shape: Shape, number: int) -> PromptPassage:
        """A passage that may take another's place: no prompt has it."""
        return Random(f"{self._seed}/spare/{number}").choice(self._of(shape, number)[1])

    def _of(self, shape: Shape, number: int) -> tuple[DrawnCases, list[PromptPassage]]:
        corpus = shape.corpus or Random(f"{self._seed}/{number}").choice(self.prose.asked).corpus
        shape = replace(shape, corpus=corpus)
        if shape not in self._drawing:
            prose = self.prose.of(corpus)
            documents = [self._cut(each, shape.chunk) for each in prose.asked]
            held = [self._cut(each, Shape().chunk) for each in prose.held]
            pool = [PromptPassage(each.parts[0], each.title) for each in held if each.parts]
            own = min(MOST_OWN, shape.passages // 2)
            whole = CaseShape(shape.passages, own, shape.order)
            self._drawing[shape] = DrawnCases(documents, seed=self._seed, shape=whole), pool
        return self._drawing[shape]

    def _cut(self, article: Article, tokens: int) -> CutDocument:
        return CutDocument(article.title, tuple(self._counts.chunks(article, tokens=tokens)))


def variants(case: Case, number: int, *, draws: int, swap: PromptPassage) -> dict[str, Case]:
    """Prompts that should get the same answer, by name: what full prefill itself differs by is the yardstick.

    More than one draw asks for those that stand beside it, too.
    """
    drawn = Variants(draws, swap)
    found = {f"{REORDERED} {draw}": each for draw, each in enumerate(drawn.reordered(case), 1)}
    if draws > 1 and number % BESIDE_EVERY == 0:
        beside = {REPLACED: drawn.replaced(case), LEFT_OUT: drawn.left_out(case)}
        found |= {name: each for name, each in beside.items() if each}
    return found
