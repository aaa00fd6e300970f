"""The made-up world, proved by a reader that knows its sentences and nothing of how a scene is drawn.

The reader takes every sentence apart, follows other names in the order of the text, and answers from what it has read.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from random import Random

import pytest

from service.lab.questions.suites import KINDS, LEVELS
from service.lab.world.relations import ASIDES, NAMINGS, RELATIONS, THINGS, Naming, Relation
from service.lab.world.scene import NAMED, Scene, SceneQuestion, SceneShape, draw

SEEDS = range(60)
SHAPES = {f"level {level}": shape for level, shape in LEVELS.items()}
SHAPES |= {kind: SceneShape((2, 4), (1, 3), (1, 3), (kind,), values=0.5) for kind in KINDS}
SHAPES |= {
    "plain": SceneShape((1, 4), (1, 4)),
    "one passage": SceneShape((1, 1), (1, 6), (2, 2), KINDS),
    "two passages": SceneShape((2, 2), (1, 1), (4, 4), KINDS, values=0.5),
    "only values": SceneShape((3, 6), (2, 3), (3, 4), KINDS, values=1.0, rare=1.0),
    "one relation": SceneShape((2, 5), (1, 3), (1, 4), KINDS, values=0.5, relations=1),
    "all relations": SceneShape((4, 8), (2, 6), (2, 6), KINDS, values=0.5, asides=(0, 6), relations=len(RELATIONS)),
    "fillers": SceneShape((2, 5), (1, 3), (1, 4), KINDS, values=0.5, fillers=(1, 4)),
    "restated": SceneShape((2, 6), (1, 4), (1, 4), KINDS, values=0.5, restated=1.0),
    "at times restated": SceneShape((2, 6), (1, 4), (1, 4), KINDS, values=0.5, asides=(0, 2), restated=0.5, rare=0.2),
}
PLAIN_WORDS = [name for name, shape in SHAPES.items() if not shape.restated]

WORD = r"\w+"
MENTION = r"(?:[Tt]he )?\w+(?: \(\w+\))?"
PRONOUNS = ("It", "She", "He")


@dataclass(frozen=True, slots=True)
class Told:
    """What a sentence says of its subject, in its own words."""

    relation: Relation
    subject: str
    value: str


@dataclass(frozen=True, slots=True)
class Named:
    """What a sentence gives another name to."""

    naming: Naming
    word: str
    entity: str


@dataclass(frozen=True, slots=True)
class Aside:
    """A sentence that tells nothing."""


Sentence = Told | Named | Aside


@dataclass(frozen=True, slots=True)
class Answer:
    """`needs`: the passages that were read for it. `kind`: by what kind of other name, if by one."""

    text: str
    kind: str
    needs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a mention stands for; `page` and `kind` of what gave it its other name."""

    entity: str
    kind: str = "plain"
    page: int | None = None


@dataclass(slots=True)
class Reading:
    """What is known after the last passage. `open`: words that stand for something that was not told before."""

    facts: dict[tuple[str, str], list[Answer]] = field(default_factory=dict[tuple[str, str], list[Answer]])
    names: dict[str, list[Meaning]] = field(default_factory=dict[str, list[Meaning]])
    topics: dict[int, str] = field(default_factory=dict[int, str])
    open: list[str] = field(default_factory=list[str])

    def add(self, sentence: Sentence, page: int, *, first: bool) -> None:
        match sentence:
            case Named(naming, _, entity) if naming.name == "topic":
                self.topics[page] = entity
            case Named(naming, word, entity):
                self.names.setdefault(word, []).append(Meaning(entity, naming.name, page))
            case Told(relation, subject, value):
                whom, what = self.meaning(subject, page, first=first), self.meaning(value, page, first=False)
                linked = what if what.page is not None else whom
                needs = (page,) if linked.page is None else (linked.page, page)
                self.facts.setdefault(_key(relation, whom.entity), []).append(Answer(what.entity, linked.kind, needs))
            case Aside():
                pass

    def meaning(self, mention: str, page: int, *, first: bool) -> Meaning:
        """A pronoun is understood in the first sentence behind the border where its topic was named."""
        word, restated = _taken_apart(mention)
        if word in PRONOUNS:
            known = [Meaning(self.topics[page - 1], "topic", page - 1)] if first and page - 1 in self.topics else []
        else:
            known = self.names.get(word, [])
        if not known and not _is_name(word):
            self.open.append(f"{mention} on page {page}")
        found = known[0] if known else Meaning(restated or word)
        assert restated in (None, found.entity)
        return found

    def answers(self, question: str) -> list[Answer]:
        found: list[Answer] = []
        for relation, subject in _asked(question):
            found += self.facts.get(_key(relation, subject), [])
        for naming, word in _asked_names(question):
            known = self.names.get(_word(naming, word), [])
            found += [Answer(each.entity, "naming", (each.page or 0,)) for each in known if each.kind == naming.name]
        return found


def _key(relation: Relation, entity: str) -> tuple[str, str]:
    return relation.says[0], entity


def _word(naming: Naming, word: str) -> str:
    return f"the {word}" if naming.name == "role" else word


def _is_name(word: str) -> bool:
    """What a reader takes for a name or a noun when nobody has explained it."""
    return word not in PRONOUNS and not word.startswith("the ") and not re.fullmatch(r"[A-Z]\d", word)


def _taken_apart(mention: str) -> tuple[str, str | None]:
    word, _, rest = mention.partition(" (")
    return (word[0].lower() + word[1:] if word.startswith("The ") else word), rest.rstrip(")") or None


@cache
def pattern(template: str, mentions: str) -> re.Pattern[str]:
    """What the template can become. The places named in `mentions` may hold another name, the others one word."""
    parts = re.split(r"\{(\w)\}", template)
    places = [f"(?P<{place}>{MENTION if place in mentions else WORD})" for place in parts[1::2]]
    plain = [re.escape(part) for part in parts[::2]]
    return re.compile("".join(a + b for a, b in zip(plain, [*places, ""], strict=True)))


def readings(sentence: str) -> Iterator[Sentence]:
    """All that a sentence can mean."""
    if sentence in ASIDES:
        yield Aside()
    for relation in RELATIONS:
        for says in relation.says:
            if found := pattern(says, "SV" if relation.value in THINGS else "S").fullmatch(sentence):
                yield Told(relation, found["S"], found["V"])
    for naming in NAMINGS.values():
        for says in naming.says:
            if found := pattern(says, "").fullmatch(sentence):
                yield Named(naming, _word(naming, found.groupdict().get("X", "")), found["E"])


@cache
def understood(sentence: str) -> Sentence:
    found = list(readings(sentence))
    assert len(found) == 1, f"{sentence!r} can be read as {found}"
    return found[0]


def _asked(question: str) -> list[tuple[Relation, str]]:
    asks = [(relation, ask) for relation in RELATIONS for ask in relation.asks]
    return [(relation, found["S"]) for relation, ask in asks if (found := pattern(ask, "").fullmatch(question))]


def _asked_names(question: str) -> list[tuple[Naming, str]]:
    asks = [(naming, ask) for naming in NAMINGS.values() for ask in naming.asks]
    return [(naming, found["X"]) for naming, ask in asks if (found := pattern(ask, "").fullmatch(question))]


def sentences(text: str) -> list[str]:
    found = re.findall(r"[^.]+\.", text)
    assert "".join(found) == text
    return [each.strip() for each in found]


def read(texts: Sequence[str]) -> Reading:
    """From the first passage to the last; an empty one was torn out."""
    reading = Reading()
    for page, text in enumerate(texts):
        for place, sentence in enumerate(sentences(text)):
            reading.add(understood(sentence), page, first=place == 0)
    return reading


def drawn(name: str) -> list[Scene]:
    return [draw(Random(f"{name}/{seed}"), SHAPES[name]) for seed in SEEDS]


scenes = cache(drawn)


@cache
def read_scenes(name: str) -> list[tuple[Scene, Reading]]:
    return [(scene, read(texts(scene))) for scene in scenes(name)]


def texts(scene: Scene, pages: Sequence[int] | None = None) -> list[str]:
    """Of these pages, at their places."""
    return [each.text if pages is None or i in pages else "" for i, each in enumerate(scene.passages)]


def two_passage_questions(scene: Scene) -> list[SceneQuestion]:
    return [question for question in scene.questions if len(question.needs) == 2]


@pytest.mark.parametrize("name", SHAPES)
def test_a_reader_of_the_text_finds_the_one_answer_and_where_it_stands(name: str) -> None:
    for scene, reading in read_scenes(name):
        for question in scene.questions:
            assert reading.answers(question.text) == [Answer(question.answer, question.kind, question.needs)]


@pytest.mark.parametrize("name", SHAPES)
def test_every_question_asks_one_thing_and_everything_told_is_asked_once(name: str) -> None:
    for scene, reading in read_scenes(name):
        asked = [len(_asked(each.text)) + len(_asked_names(each.text)) for each in scene.questions]
        assert set(asked) <= {1}
        assert len({question.text for question in scene.questions}) == len(scene.questions)
        assert len(scene.questions) == len(reading.facts) + len(reading.names)


@pytest.mark.parametrize("name", SHAPES)
def test_what_has_another_name_is_explained_before_and_in_one_way(name: str) -> None:
    for scene, reading in read_scenes(name):
        assert reading.open == []
        for word, (meaning,) in reading.names.items():
            before = " ".join(texts(scene)[: meaning.page])
            assert not re.search(rf"\b{word}\b", before, re.IGNORECASE)
        for question in two_passage_questions(scene):
            assert question.needs[0] < question.needs[1]


@pytest.mark.parametrize("name", PLAIN_WORDS)
def test_an_answer_needs_all_of_its_passages(name: str) -> None:
    for scene in scenes(name):
        everywhere = range(len(scene.passages))
        for question in scene.questions:
            for torn in question.needs:
                left = read(texts(scene, [page for page in everywhere if page != torn]))
                assert question.answer not in [each.text for each in left.answers(question.text)]


@pytest.mark.parametrize("name", SHAPES)
def test_an_answer_needs_no_more_than_its_passages(name: str) -> None:
    for scene in scenes(name):
        for question in scene.questions:
            (found,) = read(texts(scene, question.needs)).answers(question.text)
            assert found.text == question.answer


def test_a_restated_name_makes_the_later_passage_enough() -> None:
    questions = 0
    for scene in scenes("restated"):
        for question in two_passage_questions(scene):
            (found,) = read(texts(scene, question.needs[1:])).answers(question.text)
            assert found.text == question.answer
            questions += 1
    assert questions > len(SEEDS)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_other_name_links_passages(kind: str) -> None:
    for scene in scenes(kind):
        assert {question.kind for question in two_passage_questions(scene)} == {kind}


def test_a_topic_stands_last_and_its_pronoun_first_behind_the_border_where_it_begins_its_sentence() -> None:
    for scene in scenes("topic"):
        pages = [[(sentence, understood(sentence)) for sentence in sentences(text)] for text in texts(scene)]
        for before, behind in pairwise(pages):
            named = [meaning for _, meaning in before if isinstance(meaning, Named)]
            told = [(sentence, meaning) for sentence, meaning in behind if isinstance(meaning, Told)]
            pronouns = [(sentence, meaning) for sentence, meaning in told if meaning.subject in PRONOUNS]
            assert named == [meaning for _, meaning in before[-1:] if isinstance(meaning, Named)]
            assert pronouns == behind[: len(named)]
            assert all(sentence.startswith(meaning.subject) for sentence, meaning in pronouns)


@pytest.mark.parametrize("name", SHAPES)
def test_a_scene_keeps_to_its_shape(name: str) -> None:
    shape = SHAPES[name]
    for scene in scenes(name):
        telling = [any(understood(s) != Aside() for s in sentences(text)) for text in texts(scene)]
        assert shape.passages[0] <= sum(telling) <= shape.passages[1]
        assert shape.fillers[0] <= len(telling) - sum(telling) <= shape.fillers[1]
        assert len(two_passage_questions(scene)) <= shape.links[1]
        for text in [text for text, tells in zip(texts(scene), telling, strict=True) if tells]:
            asides = sum(understood(each) == Aside() for each in sentences(text))
            assert shape.asides[0] <= asides <= shape.asides[1]
            assert len(sentences(text)) - asides >= shape.facts[0]


@pytest.mark.parametrize("name", SHAPES)
def test_nothing_in_a_scene_answers_what_is_unanswered(name: str) -> None:
    asked = 0
    for scene, reading in read_scenes(name):
        for question in scene.unanswered:
            assert reading.answers(question.text) == []
            assert len(_asked(question.text)) + len(_asked_names(question.text)) == 1
            asked += 1
    assert asked > 4 * len(SEEDS)


@pytest.mark.parametrize("name", SHAPES)
def test_facts_say_what_a_reader_takes_from_their_sentences(name: str) -> None:
    for scene in [each for found in scenes(name) for each in (found, found.reversed())]:
        for passage, facts in zip(scene.passages, scene.facts, strict=True):
            for fact in facts:
                assert fact.sentence in sentences(passage.text)
                match understood(fact.sentence):
                    case Told(relation, subject, value):
                        assert relation == RELATIONS[fact.relation]
                        said = {_taken_apart(each)[0].removeprefix("the ") for each in (subject, value)}
                        alias = fact.alias
                        meant = {alias.meaning if alias and each in (alias.word, *PRONOUNS) else each for each in said}
                        assert meant == {fact.subject, fact.value}
                    case Named(_, word, entity):
                        assert (fact.relation, fact.subject, fact.value) == (NAMED, word.removeprefix("the "), entity)
                    case _:
                        raise AssertionError(fact)
                assert fact.alias is None or fact.alias.meaning in scene.passages[fact.alias.page].text


@pytest.mark.parametrize("name", SHAPES)
def test_a_scene_that_is_reversed_twice_is_itself(name: str) -> None:
    for scene in scenes(name):
        assert scene.reversed().reversed() == scene


@pytest.mark.parametrize("name", SHAPES)
def test_a_seed_decides_the_scene(name: str) -> None:
    found = scenes(name)
    assert found == drawn(name)
    assert len({scene.passages for scene in found}) == len(found)


def test_the_reader_sees_a_name_used_before_its_meaning_two_meanings_and_two_values() -> None:
    early = read(["K7 is based in Halford.", "Code K7 stands for Beltek."])
    assert early.open == ["K7 on page 0"]
    assert early.answers("Where is Beltek based?") == []
    twice = read(["Code K7 stands for Beltek. Code K7 stands for Cortek. K7 is based in Halford."])
    assert len(twice.answers("What does code K7 stand for?")) == 2
    both = read(["Beltek is based in Halford.", "The seat of Beltek is in Calton."])
    assert [each.text for each in both.answers("Where is Beltek based?")] == ["Halford", "Calton"]


def test_the_reader_does_not_understand_a_pronoun_without_its_border() -> None:
    assert read(["The next page is about Bela. She keeps a fox."]).open == ["She on page 0"]
    assert read(["The next page is about Bela.", "", "She keeps a fox."]).open == ["She on page 2"]
    linked = read(["The next page is about Bela.", "She keeps a fox."]).answers("Which animal does Bela keep?")
    assert linked == [Answer("fox", "topic", (0, 1))]
