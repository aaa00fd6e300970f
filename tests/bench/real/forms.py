"""Prompts of three forms out of articles: go on with an article, fill a gap in a sentence, name a text's article.

Of an article some chunks stand among chunks of others, as a search in a collection finds them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random

from service.model.capture_context import PASSAGES, excerpt
from service.model.prompt_builder import PromptPassage
from tests.bench.real.articles import Article, ArticleChunk, Prose, TokenCounts
from tests.bench.real.drawn_prompt import DrawnPassage, DrawnPrompt

COPIED, FOLLOWING = 14, 32  # words of a continuation: those that the question names, and those that are judged
LEAD, GAP = 8, 6  # words of a blanked sentence: those before the gap that the answer repeats, and those in it
AROUND = 10  # words that the question shows behind the gap
BEFORE = 120  # words before a chunk: more than a capture context takes
MOST_OWN = 12  # chunks of the article that is asked of
ALIKE = 2  # examples of that article among few-shot's
LEAST = 4  # passages
OF_GAP = 3  # tokens between two passages, about
IN_ORDER, SCATTERED, SHUFFLED = "in order", "scattered", "shuffled"  # own chunks together, apart, or in no order


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

    @property
    def own(self) -> int:
        """How many of them are of the article that is asked of."""
        return min(MOST_OWN, self.passages // 2)


@dataclass(frozen=True, slots=True)
class Material:
    """What prompts are drawn from."""

    prose: Prose
    counts: TokenCounts
    seed: int


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Chunks of one article in order, chunks of others, one more, and a corpus' filler."""

    own: list[ArticleChunk]
    others: list[ArticleChunk]
    spare: ArticleChunk
    filler: tuple[PromptPassage, ...]


def continuation(material: Material, shape: Shape, *, number: int) -> DrawnPrompt:
    """Go on with an article whose chunks before stand among the passages."""
    random = Random(f"{material.seed}/{number}")
    drawn = _drawn(material, shape, random, own=shape.own)
    article, at = drawn.own[-1].article, drawn.own[-1].stop
    tail = article.words[at : at + COPIED + FOLLOWING]
    given = " ".join(tail[:COPIED])
    question = f"Copy this beginning of a paragraph of {article.title}, and go on with it: {given}"
    return _prompt(drawn, _ordered(drawn, shape, random), question=question, answer=(given, " ".join(tail)))


def blank(material: Material, shape: Shape, *, number: int) -> DrawnPrompt:
    """Words are blanked out of a passage; the answer repeats the words before them, and says them."""
    random = Random(f"{material.seed}/{number}")
    drawn = _drawn(material, shape, random, own=shape.own)
    chunk = random.choice(drawn.own)
    words = chunk.text.split()
    at = random.randrange(LEAD, max(LEAD + 1, len(words) - GAP - AROUND))
    given, missing, behind = words[at - LEAD : at], words[at : at + GAP], words[at + GAP : at + GAP + AROUND]
    shown = f"{' '.join(given)} ____ {' '.join(behind)}"
    question = (
        f'What do the documents say of {chunk.article.title}? Words are missing here: "{shown}". Write them all out.'
    )
    answer = (" ".join(given), " ".join([*given, *missing]))
    return _prompt(drawn, _ordered(drawn, shape, random), question=question, answer=answer)


def few_shot(material: Material, shape: Shape, *, number: int) -> DrawnPrompt:
    """Each passage is a text and the name of its article; the last text is without one."""
    random = Random(f"{material.seed}/{number}")
    drawn = _drawn(material, shape, random, own=ALIKE)
    article, at = drawn.own[-1].article, drawn.own[-1].stop
    asked = " ".join(article.words[at : at + COPIED + FOLLOWING])
    shown = [_example(each) for each in _ordered(drawn, shape, random)]
    filler = tuple(PromptPassage(f"Text: {each.text}\nArticle: {each.title}") for each in drawn.filler)
    return DrawnPrompt(
        tuple(shown),
        f"Which article is the last text of?\n\nText: {asked}",
        "Article:",
        f"Article: {article.title}",
        _example(_Placed(drawn.spare)),
        filler,
    )


def foreign_passages(
    material: Material, shape: Shape, random: Random
) -> tuple[list[DrawnPassage], tuple[PromptPassage, ...]]:
    """As many passages as the shape has and one more, each of another article of one corpus; and its filler."""
    asked = material.prose.of(shape.corpus).asked
    corpus = random.choice(asked).corpus
    articles = random.sample(material.prose.of(corpus).asked, shape.passages + 1)
    chunks = [_one_of(material, each, shape, random=random) for each in articles]
    return [_passage(_Placed(each)) for each in chunks], filler_of(material, corpus)


FORMS: dict[str, Callable[..., DrawnPrompt]] = {"continuation": continuation, "blank": blank, "few-shot": few_shot}


@dataclass(frozen=True, slots=True)
class _Placed:
    chunk: ArticleChunk
    is_own: bool = False


def _drawn(material: Material, shape: Shape, random: Random, *, own: int) -> _Drawn:
    """Draws until an article is long enough. Foreign chunks are of the same corpus, each of another article."""
    asked = [*material.prose.of(shape.corpus).asked]
    while asked:
        article = random.choice(asked)
        start = random.randrange(len(article.words) // 2)
        chunks = material.counts.chunks(article, start=start, tokens=shape.chunk)[:own]
        if len(chunks) == own and chunks[-1].stop + COPIED + FOLLOWING <= len(article.words):
            break
        asked.remove(article)
    else:
        raise ValueError(f"no article has {own} chunks of {shape.chunk} tokens: name a folder of longer texts")
    others = [each for each in material.prose.of(article.corpus).asked if each != article]
    wanted = shape.passages - own + 1
    foreign = [_one_of(material, each, shape, random=random) for each in random.sample(others, wanted)]
    return _Drawn(chunks, foreign[1:], foreign[0], filler_of(material, article.corpus))


def _one_of(material: Material, article: Article, shape: Shape, *, random: Random) -> ArticleChunk:
    return random.choice(material.counts.chunks(article, start=0, tokens=shape.chunk))


def filler_of(material: Material, corpus: str) -> tuple[PromptPassage, ...]:
    """Passages of a corpus' held-out articles, always the same: what all of its chunks are captured behind."""
    random = Random(f"{material.seed}/filler/{corpus}")
    articles = random.sample(material.prose.of(corpus).held, PASSAGES)
    chunks = [_one_of(material, each, Shape(), random=random) for each in articles]
    return tuple(PromptPassage(excerpt(each.text), each.article.title) for each in chunks)


def _ordered(drawn: _Drawn, shape: Shape, random: Random) -> list[_Placed]:
    own, others = [_Placed(each, is_own=True) for each in drawn.own], [_Placed(each) for each in drawn.others]
    if shape.order == IN_ORDER:
        at = random.randrange(len(others) + 1)
        return [*others[:at], *own, *others[at:]]
    places = random.sample(range(len(own) + len(others)), len(own))
    following = iter(own)
    rest = iter(others)
    mixed = [next(following) if place in places else next(rest) for place in range(len(own) + len(others))]
    if shape.order == SHUFFLED:
        random.shuffle(mixed)
        while _is_ascending([each.chunk.start for each in mixed if each.is_own]) and len(own) > 1:
            random.shuffle(mixed)
    return mixed


def _is_ascending(numbers: Sequence[int]) -> bool:
    return all(a < b for a, b in pairwise(numbers))


def _prompt(drawn: _Drawn, placed: Sequence[_Placed], *, question: str, answer: tuple[str, str]) -> DrawnPrompt:
    shown = tuple(_passage(each) for each in placed)
    return DrawnPrompt(shown, question, *answer, spare=_passage(_Placed(drawn.spare)), filler=drawn.filler)


def _passage(placed: _Placed) -> DrawnPassage:
    chunk, title = placed.chunk, placed.chunk.article.title
    before = chunk.before(BEFORE)
    return DrawnPassage(
        PromptPassage(chunk.text, title), PromptPassage(before, title) if before else None, placed.is_own
    )


def _example(placed: _Placed) -> DrawnPassage:
    """The chunk as an example. Each is a document of its own, with nothing before it."""
    chunk = placed.chunk
    return DrawnPassage(PromptPassage(f"Text: {chunk.text}\nArticle: {chunk.article.title}"), None, placed.is_own)
