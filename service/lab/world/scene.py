"""Scenes: a few passages in the order of a prompt, and all questions that they answer. Every draw comes from one seed.

A passage may give something another name, and a later one may use it: then the question needs both.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from random import Random

from service.lab.world.relations import ASIDES, BOOKS, NAMINGS, RELATIONS, THINGS, Naming, Relation
from service.lab.world.words import Entity, WordDrawer

UNKNOWN = "unknown"  # the answer where no passage tells
MISSING = "missing"
NAMED = len(RELATIONS)  # stands for a relation where a sentence gives another name
NEVER = 1 << 30  # stands for the passage that explains a name where there is none: it comes behind all others
_UNANSWERED = 6  # questions of a scene that no passage answers


@dataclass(frozen=True, slots=True)
class ScenePassage:
    """A chunk of a document; passages of one title stand in their document's order."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class SceneQuestion:
    """A question of a scene. `about`: the name it holds. `needs`: what passages answer it together.

    `kind`: plain, naming, the link's; unexplained where only another name is known; of what no passage answers, MISSING
    where another one tells a part, else UNKNOWN.
    """

    text: str
    about: str
    answer: str
    kind: str
    needs: tuple[int, ...]
    relation: int | None = None  # its number in RELATIONS; None where a name is asked for


@dataclass(frozen=True, slots=True)
class Alias:
    """The other name that a sentence uses, and the passage that explains it, or NEVER."""

    word: str
    meaning: str
    page: int


@dataclass(frozen=True, slots=True)
class Fact:
    """What a sentence of a passage says, other names resolved. `relation`: its number in RELATIONS, or NAMED."""

    sentence: str
    subject: str
    value: str
    relation: int
    alias: Alias | None = None

    def moved(self, place: Mapping[int, int]) -> "Fact":
        """The fact where each passage stands at a new place, or nowhere."""
        return replace(self, alias=self.alias and replace(self.alias, page=place.get(self.alias.page, NEVER)))


@dataclass(frozen=True, slots=True)
class Scene:
    """A few passages. `facts` are those of each passage, `unanswered` are questions that none of them answers."""

    passages: tuple[ScenePassage, ...]
    questions: tuple[SceneQuestion, ...]
    facts: tuple[tuple[Fact, ...], ...]
    unanswered: tuple[SceneQuestion, ...]

    def reversed(self) -> "Scene":
        """The scene with its documents in the other order; the passages of a document stay in their own."""
        documents = [list(group) for _, group in groupby(range(len(self.passages)), lambda i: self.passages[i].title)]
        return self._arranged([page for document in reversed(documents) for page in document])

    def filled(self, fillers: Mapping[int, Sequence[ScenePassage]]) -> "Scene":
        """The scene with passages that tell nothing before those with these numbers."""
        pages = range(len(self.passages))
        order = [each for page in pages for each in (*fillers.get(page, ()), page)]
        return self._arranged([*order, *fillers.get(len(pages), ())])

    def without(self, page: int) -> "Scene":
        """The scene without this passage: what needs it is unanswered, or answered by a name that nobody explains now.

        Questions about names that are restated elsewhere are left out.
        """
        kept = [each for each in range(len(self.passages)) if each != page]
        told = " ".join(self.passages[each].text for each in kept)
        questions, unanswered = list[SceneQuestion](), list[SceneQuestion]()
        for each in self.questions:
            if page not in each.needs:
                questions.append(each)
            elif not any(f"({name})" in told for name in (each.about, each.answer)):
                name = self._unexplained(each, kept)
                if name is None:
                    kind = MISSING if len(each.needs) > 1 else UNKNOWN
                    unanswered.append(replace(each, answer=UNKNOWN, kind=kind, needs=()))
                else:
                    [needed] = [other for other in each.needs if other != page]
                    questions.append(replace(each, answer=name, kind="unexplained", needs=(needed,)))
        left = replace(self, questions=tuple(questions), unanswered=(*unanswered, *self.unanswered))
        return left._arranged(kept)

    def _unexplained(self, question: SceneQuestion, pages: Iterable[int]) -> str | None:
        """The other name by which one of these pages tells the answer, if one does."""
        for fact in chain.from_iterable(self.facts[page] for page in pages):
            said = (fact.subject, fact.relation, fact.value) == (question.about, question.relation, question.answer)
            if said and fact.alias is not None and fact.alias.meaning == fact.value:
                return f"the {fact.alias.word}" if question.kind == "role" else fact.alias.word
        return None

    def linked_pages(self) -> list[int]:
        """Every passage that a question needs besides another, once for each; none between two of its own document.

        Without one of those, what goes on behind it would seem to go on from what stands before it.
        """
        titles = [None, *(each.title for each in self.passages), None]
        pages = [page for each in self.questions if len(each.needs) == 2 for page in each.needs]
        return [page for page in pages if len({*titles[page : page + 3]}) > 1]

    def _arranged(self, order: Sequence[int | ScenePassage]) -> "Scene":
        """The scene of its own passages with these numbers, and of others that tell nothing."""
        place = {page: at for at, page in enumerate(order) if isinstance(page, int)}
        return Scene(
            tuple(self.passages[each] if isinstance(each, int) else each for each in order),
            tuple(replace(each, needs=tuple(place[page] for page in each.needs)) for each in self.questions),
            tuple(
                tuple(fact.moved(place) for fact in self.facts[each]) if isinstance(each, int) else () for each in order
            ),
            self.unanswered,
        )


@dataclass(frozen=True, slots=True)
class SceneShape:
    """How hard a scene is. Pairs are the least and the most of something; shares lie in [0, 1]."""

    passages: tuple[int, int]
    facts: tuple[int, int]  # facts stated in each passage
    links: tuple[int, int] = (0, 0)  # other names
    kinds: tuple[str, ...] = ()  # of other names
    values: float = 0.0  # share of linked facts whose value has the other name, not the subject
    asides: tuple[int, int] = (0, 0)  # sentences that state nothing, in each passage
    restated: float = 0.0  # share of other names with their meaning in parentheses
    rare: float = 0.0  # share of rare names
    relations: int = 4  # different kinds of facts
    many_names: bool = False  # are more names common?
    fillers: tuple[int, int] = (0, 0)  # passages that state nothing, besides the others


@dataclass(slots=True)
class _Page:
    """A passage that is being written: what must stand first, what anywhere, what last."""

    first: list[str] = field(default_factory=list[str])
    body: list[str] = field(default_factory=list[str])
    last: list[str] = field(default_factory=list[str])
    facts: list[Fact] = field(default_factory=list[Fact])

    @property
    def sentences(self) -> int:
        return len(self.first) + len(self.body) + len(self.last)

    def text(self, random: Random) -> str:
        random.shuffle(self.body)
        return " ".join((*self.first, *self.body, *self.last))


@dataclass(frozen=True, slots=True)
class _Link:
    """A link between passages: from passage `page` on, `word` means the entity."""

    naming: Naming
    word: str
    entity: Entity
    page: int


def draw(random: Random, shape: SceneShape) -> Scene:
    """One scene. Every question has exactly one answer in it."""
    return _Writer(random, shape).write()


class _Writer:
    def __init__(self, random: Random, shape: SceneShape) -> None:
        self._random = random
        self._shape = shape
        self._draw = WordDrawer(random, rare=shape.rare, many=shape.many_names)
        self._pages = [_Page() for _ in range(random.randint(*shape.passages))]
        self._fillers = random.randint(*shape.fillers) if shape.fillers != (0, 0) else 0
        self._relations = random.sample(RELATIONS, shape.relations)
        self._theme = random.choice(self._relations)  # links are told of in the same way, or one could guess
        self._joined: set[int] = set()  # pages that go on on the next one
        self._known: list[Entity] = []
        self._stated: set[tuple[Entity, Relation]] = set()
        self._questions: list[SceneQuestion] = []

    def write(self) -> Scene:
        for link in self._links():
            self._use(link)
        for number, page in enumerate(self._pages):
            for _ in range(self._random.randint(*self._shape.facts) - page.sentences):
                self._tell(number)
            page.body += self._random.sample(ASIDES, self._random.randint(*self._shape.asides))
        titles = self._titles()
        passages = tuple(
            ScenePassage(title, page.text(self._random)) for title, page in zip(titles, self._pages, strict=True)
        )
        facts = tuple(tuple(page.facts) for page in self._pages)
        scene = Scene(passages, tuple(self._questions), facts, tuple(self._unanswered()))
        return self._filled(scene) if self._fillers else scene

    def _links(self) -> Iterator[_Link]:
        free = list(range(len(self._pages) - 1))  # a page border holds one topic
        for _ in range(self._random.randint(*self._shape.links) if free else 0):
            kinds = [kind for kind in self._shape.kinds if kind != "topic" or free]
            if not kinds:
                return
            naming = NAMINGS[self._random.choice(kinds)]
            entity = self._subject(self._linked_kind(naming))
            if naming.name == "topic":
                page = free.pop(self._random.randrange(len(free)))
                self._joined.add(page)
                word = self._random.choice(("She", "He")) if entity.kind == "person" else "It"
            else:
                page = self._random.randrange(len(self._pages) - 1)
                word = (
                    self._draw.entity(entity.kind).name if naming.name == "renaming" else self._draw.fresh(naming.name)
                )
            yield _Link(naming, word, entity, page)

    def _use(self, link: _Link) -> None:
        says = self._random.choice(link.naming.says).format(X=link.word, E=link.entity.name)
        page = self._pages[link.page]
        (page.last if link.naming.name == "topic" else page.body).append(says)
        if link.naming.asks:
            ask = self._random.choice(link.naming.asks).format(X=link.word)
            self._questions.append(SceneQuestion(ask, link.word, link.entity.name, "naming", (link.page,)))
            page.facts.append(Fact(says, link.word, link.entity.name, NAMED))
        if link.naming.name == "topic":
            self._tell_of(link, link.page + 1)
            return
        later = self._random.randrange(link.page + 1, len(self._pages))
        if self._random.random() < self._shape.values and self._valued(link, later):
            return
        self._tell_of(link, later)

    def _tell_of(self, link: _Link, number: int) -> None:
        """States a fact about the link's entity by its other name: the theme, if possible, as with its rivals."""
        fits = self._theme.subject == link.entity.kind and (link.entity, self._theme) not in self._stated
        relation = self._theme if fits else self._untold(link.entity)
        if relation is None:
            return
        value = self._value(relation)
        says = self._random.choice(relation.says[:2] if link.naming.name in ("topic", "role") else relation.says)
        sentence = says.format(S=self._mention(link), V=value)
        page = self._pages[number]
        sentence = sentence[0].upper() + sentence[1:]
        (page.first if link.naming.name == "topic" else page.body).append(sentence)
        alias = Alias(link.word, link.entity.name, link.page)
        fact = Fact(sentence, link.entity.name, value, RELATIONS.index(relation), alias)
        self._state(fact, link.entity, number=number, kind=link.naming.name)

    def _valued(self, link: _Link, number: int) -> bool:
        """States a fact whose value has the link's other name. Returns whether it did."""
        fitting = [relation for relation in self._relations if relation.value == link.entity.kind]
        if not fitting:
            return False
        relation = self._random.choice(fitting)
        subject = self._subject(relation.subject)
        if (subject, relation) in self._stated or subject == link.entity:
            return False
        sentence = self._random.choice(relation.says).format(S=subject.name, V=self._mention(link))
        self._pages[number].body.append(sentence)
        alias = Alias(link.word, link.entity.name, link.page)
        fact = Fact(sentence, subject.name, link.entity.name, RELATIONS.index(relation), alias)
        self._state(fact, subject, number=number, kind=link.naming.name)
        return True

    def _mention(self, link: _Link) -> str:
        word = f"the {link.word}" if link.naming.name == "role" else link.word
        return f"{word} ({link.entity.name})" if self._random.random() < self._shape.restated else word

    def _tell(self, number: int) -> None:
        """States a plain fact."""
        relation = self._random.choice(self._relations)
        subject = self._subject(relation.subject)
        if (subject, relation) in self._stated:
            subject = self._draw.entity(relation.subject)
            self._known.append(subject)
        value = self._value(relation)
        sentence = self._random.choice(relation.says).format(S=subject.name, V=value)
        self._pages[number].body.append(sentence)
        fact = Fact(sentence, subject.name, value, RELATIONS.index(relation))
        self._state(fact, subject, number=number, kind="plain")

    def _state(self, fact: Fact, subject: Entity, *, number: int, kind: str) -> None:
        """Notes what a sentence of a passage says, and asks for it."""
        relation = RELATIONS[fact.relation]
        self._stated.add((subject, relation))
        self._pages[number].facts.append(fact)
        needs = (fact.alias.page, number) if fact.alias else (number,)
        ask = self._random.choice(relation.asks).format(S=fact.subject)
        self._questions.append(SceneQuestion(ask, fact.subject, fact.value, kind, needs, fact.relation))

    def _unanswered(self) -> Iterator[SceneQuestion]:
        """Questions on facts never stated, of known and of unknown entities, and on names never given."""
        for turn in range(_UNANSWERED):
            known = self._random.choice(self._known) if self._known and turn % 3 else None
            entity = known or self._draw.entity(self._random.choice(self._relations).subject)
            relation = self._untold(entity)
            if turn == 0:
                naming = NAMINGS[self._random.choice(("role", "code"))]
                word = self._draw.fresh(naming.name)
                yield SceneQuestion(self._random.choice(naming.asks).format(X=word), word, UNKNOWN, UNKNOWN, ())
            elif relation is not None:
                self._stated.add((entity, relation))
                ask = self._random.choice(relation.asks).format(S=entity.name)
                yield SceneQuestion(ask, entity.name, UNKNOWN, UNKNOWN, (), RELATIONS.index(relation))

    def _filled(self, scene: Scene) -> Scene:
        """The scene with passages that state nothing, at any place except borders inside of a document."""
        free = [page for page in range(len(self._pages) + 1) if page - 1 not in self._joined]
        fillers: dict[int, list[ScenePassage]] = {}
        for _ in range(self._fillers):
            text = " ".join(self._random.sample(ASIDES, self._random.randint(2, 5)))
            passage = ScenePassage(self._title(self._random.randrange(11, 100)), text)
            fillers.setdefault(self._random.choice(free), []).append(passage)
        return scene.filled(fillers)

    def _linked_kind(self, naming: Naming) -> str:
        """A kind that the naming can name: mostly the theme's, else one that this scene's facts tell about."""
        if self._theme.subject in naming.kinds and self._random.random() < 0.8:
            return self._theme.subject
        subjects = [relation.subject for relation in self._relations if relation.subject in naming.kinds]
        return self._random.choice(subjects or [kind for kind in THINGS if kind in naming.kinds])

    def _subject(self, kind: str) -> Entity:
        """A subject of this kind, often one that is known already."""
        known = [entity for entity in self._known if entity.kind == kind]
        if known and self._random.random() < 0.3:
            return self._random.choice(known)
        self._known.append(entity := self._draw.entity(kind))
        return entity

    def _untold(self, entity: Entity) -> Relation | None:
        """A relation not yet stated of the entity: one of the scene's, or else any."""
        for relations in (self._relations, RELATIONS):
            left = [each for each in relations if each.subject == entity.kind and (entity, each) not in self._stated]
            if left:
                return self._random.choice(left)
        return None

    def _value(self, relation: Relation) -> str:
        if relation.value not in THINGS:
            return self._draw.noun(relation.value)
        known = [entity.name for entity in self._known if entity.kind == relation.value]
        if known and self._random.random() < 0.2:
            return self._random.choice(known)
        return self._draw.entity(relation.value).name

    def _titles(self) -> list[str]:
        """The title of each page; a page that goes on has the title of the next one."""
        numbers = self._random.sample(range(11, 100), len(self._pages))
        titles: list[str] = []
        for page, number in enumerate(numbers):
            goes_on = page > 0 and (page - 1 in self._joined or self._random.random() < 0.6)
            titles.append(titles[-1] if goes_on else self._title(number))
        return titles

    def _title(self, number: int) -> str:
        return f"{self._random.choice(BOOKS)} {number}"
