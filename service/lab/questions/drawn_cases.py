"""Suites without labels, drawn of a user's documents: continuations, blanks, copies, records, needles. Knows no model.

A case shows some parts of a document among parts of others, as a search in a collection finds them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise, zip_longest
from random import Random

from retriever.documents import Document
from service.lab.questions.cases import Case, SuiteError
from service.model.capture_context import CaptureContext, excerpt
from service.model.prompt_builder import PromptPassage

COPIED, FOLLOWING = 14, 32  # words of a continuation: those that the question names, and those that are judged
LEAD, GAP = 8, 6  # words of a blanked sentence: those before the gap that the answer repeats, and those in it
AROUND = 10  # words that the question shows behind the gap
IN_ORDER, SCATTERED, SHUFFLED = "in order", "scattered", "shuffled"  # own parts together, apart, or in no order

PEOPLE = 4  # of a case's records
OTHERS, BESIDE = 2, 3  # records and parts of documents that are its filler, by turns
NEEDLES = 4  # of several in a case
VALUES = 2  # of one key
ALIKE = 2  # examples of the document that is asked of
LINKS = 3  # of a chain that is followed from key to key
DIGITS = "123456789"
FIRST = "Anna Peter Maria John Yuki Omar Elena David Lucy Hugo Nina Carlos"
LAST = "Lopez Schmidt Rossi Carter Tanaka Haddad Petrova Cohen Brown Martin Berg Diaz"
JOBS = "painter dentist pilot baker lawyer nurse farmer plumber judge singer tailor butcher"
TOWNS = "Lisbon Hamburg Rome Boston Kyoto Cairo Moscow Haifa Leeds Lyon Oslo Lima"
KEYS = "falcon otter badger raven lynx heron weasel marten gecko bison viper crane"
_TOO_SHORT = "no document has a part behind another with some thirty words in it: name longer documents"
OFFICE = "The office is on the first floor."


@dataclass(frozen=True, slots=True)
class CutDocument:
    """A document's title, and its parts in their order."""

    title: str
    parts: tuple[str, ...]

    @classmethod
    def of(cls, document: Document) -> "CutDocument":
        return cls(document.title, tuple(part.text.strip() for part in document.parts))


@dataclass(frozen=True, slots=True)
class Shape:
    """How many parts a case shows, how many at most are of the document that is asked of, and how these stand."""

    passages: int = 10
    own: int = 5
    order: str = IN_ORDER


@dataclass(frozen=True, slots=True)
class _Part:
    document: CutDocument
    at: int
    is_own: bool = False

    @property
    def text(self) -> str:
        return self.document.parts[self.at]

    @property
    def passage(self) -> PromptPassage:
        return PromptPassage(self.text, self.document.title)

    @property
    def context(self) -> CaptureContext:
        return CaptureContext(before=replace(self, at=self.at - 1).passage if self.at else None)


class DrawnCases:
    """Cases out of documents. The same number is always the same case, whatever was drawn before."""

    def __init__(self, documents: Sequence[CutDocument], *, seed: int, shape: Shape | None = None) -> None:
        self._shape = shape or Shape()
        self._seed = seed
        self._parts = [_Part(each, at) for each in documents for at in range(len(each.parts))]
        self._followed = [part for part in self._parts if part.at and len(_words_on(part)) >= COPIED + FOLLOWING // 2]

    def draw(self, suite: str, number: int) -> Case:
        """The case of this number. Raises SuiteError where the documents are too short for the suite."""
        if suite not in SUITES:
            raise SuiteError(f"no suite is named {suite!r}: choose of {', '.join(SUITES)}")
        return replace(SUITES[suite](self, Random(f"{self._seed}/{suite}/{number}")), suite=suite)

    def continuation(self, random: Random) -> Case:
        """Go on with a document whose parts before stand among the passages."""
        if not self._followed:
            raise SuiteError(_TOO_SHORT)
        next_part = random.choice(self._followed)
        tail = _words_on(next_part)[: COPIED + FOLLOWING]
        given = " ".join(tail[:COPIED])
        question = f"Copy this beginning of a paragraph of {_named(next_part)}, and go on with it: {given}"
        return self._case(random, self._before(next_part), question=question, skip=given, answer=" ".join(tail))

    def blank(self, random: Random) -> Case:
        """Words are blanked out of a part; the answer repeats the words before them, and says them."""
        part, own = self._long_part(random, words=LEAD + GAP)
        words = part.text.split()
        at = random.randrange(LEAD, max(LEAD + 1, len(words) - GAP - AROUND))
        given, missing, behind = words[at - LEAD : at], words[at : at + GAP], words[at + GAP : at + GAP + AROUND]
        shown = f'Words are missing here: "{" ".join(given)} ____ {" ".join(behind)}". Write them all out.'
        question = f"What do the documents say of {_named(part)}? {shown}"
        answer = " ".join([*given, *missing])
        return self._case(random, own, question=question, skip=" ".join(given), answer=answer)

    def copy(self, random: Random) -> Case:
        """Copy a part word for word from its first words on."""
        part, own = self._long_part(random, words=COPIED)
        words = part.text.split()[: LEAD + FOLLOWING]
        given = " ".join(words[:LEAD])
        question = f'Copy the passage of {_named(part)} that begins with "{given}", word for word.'
        return self._case(random, own, question=question, skip=given, answer=" ".join(words))

    def examples(self, random: Random) -> Case:
        """Each passage is a text and the name of its document; the last text is without one."""
        if not self._followed:
            raise SuiteError(_TOO_SHORT)
        asked = random.choice(self._followed)
        title = asked.document.title
        question = f"Which document is the last text of?\n\nText: {' '.join(_words_on(asked)[: COPIED + FOLLOWING])}"
        case = self._case(random, self._before(asked)[-ALIKE:], question=question, skip="Document:", answer="")
        shown = tuple(PromptPassage(f"Text: {each.text}\nDocument: {each.title}") for each in case.passages)
        return replace(case, passages=shown, contexts=(), answers=(f"Document: {title}", title))

    def needle(self, random: Random, *, keys: int = 1) -> Case:
        """Numbers of some keys stand somewhere in the documents; one is asked for."""
        named, [right, *others] = random.sample(KEYS.split(), keys), _numbers(random, keys)
        sentence = "The special magic number of the {} is {}."
        said = [(sentence.format(named[0], right), True)]
        said += [(sentence.format(key, value), False) for key, value in zip(named[1:], others, strict=True)]
        wrong = others or [digit for digit in DIGITS if digit != right[0]]
        given = f"The special magic number of the {named[0]} is"
        question = f"What is the special magic number of the {named[0]}?"
        return self._hidden(random, said, asked=_asked(Case(question, ()), given, right=right, wrong=wrong))

    def values(self, random: Random) -> Case:
        """Several numbers of one key stand in the documents, and one of another; all of the one are asked for."""
        (key, other), [*right, wrong] = random.sample(KEYS.split(), 2), _numbers(random, VALUES + 1)
        said = [(f"One of the magic numbers of the {key} is {value}.", True) for value in right]
        said.append((f"One of the magic numbers of the {other} is {wrong}.", False))
        given = f"The magic numbers of the {key} are"
        question = f"What are all the magic numbers of the {key}, the smallest first?"
        told = " and ".join(sorted(right))
        return self._hidden(random, said, asked=_asked(Case(question, ()), given, right=told, wrong=[wrong]))

    def chain(self, random: Random) -> Case:
        """A key's number is another key's, whose number is a third one's: each link stands in a part of its own."""
        keys, [right, wrong] = random.sample(KEYS.split(), LINKS + 1), _numbers(random, 2)
        links = [f"The number of the {a} is the number of the {b}." for a, b in pairwise(keys[:LINKS])]
        said = [(each, True) for each in (*links, f"The number of the {keys[LINKS - 1]} is {right}.")]
        said.append((f"The number of the {keys[LINKS]} is {wrong}.", False))
        given = f"The number of the {keys[0]} is"
        question = f"What is the number of the {keys[0]}? It may be said by way of others."
        return self._hidden(random, said, asked=_asked(Case(question, ()), given, right=right, wrong=[wrong]))

    def records(self, random: Random, *, parted: bool = False) -> Case:
        """People alike but for their numbers, among parts of documents. `parted`: numbers are chunks by themselves."""
        drawn = _people(random)
        people, others = drawn[:PEOPLE], drawn[PEOPLE:]
        asked = random.choice(people)
        parts = self._foreign(random, BESIDE + max(0, self._shape.passages - PEOPLE * (1 + parted)))
        blocks = [[part] for part in parts[:-BESIDE]]
        blocks += [each.parts(parted=parted, is_own=each is asked) for each in people]
        random.shuffle(blocks)
        case = _shown([*chain.from_iterable(blocks)])
        beside = chain.from_iterable(person.parts(parted=parted) for person in others)
        spare = chain.from_iterable(zip_longest(parts[-BESIDE:], beside))
        filler = tuple(PromptPassage(excerpt(part.text), part.document.title) for part in spare if part)
        contexts = tuple(replace(each, filler=filler) for each in case.contexts)
        given, question = f"The phone number of {asked.name} is", f"What is the phone number of {asked.name}?"
        case = replace(case, question=question, contexts=contexts)
        return _asked(case, given, right=asked.phone, wrong=[each.phone for each in people if each is not asked])

    def _case(self, random: Random, own: Sequence[_Part], *, question: str, skip: str, answer: str) -> Case:
        others = self._foreign(random, self._shape.passages - len(own), but=own[0].document)
        placed = _ordered([replace(each, is_own=True) for each in own], others, order=self._shape.order, random=random)
        return replace(_shown(placed), question=question, answers=(answer,), skip=skip)

    def _hidden(self, random: Random, said: Sequence[tuple[str, bool]], *, asked: Case) -> Case:
        """Foreign parts with a sentence put into as many of them; those that the answer rests on are marked."""
        parts = self._foreign(random, self._shape.passages)
        if len(parts) < len(said):
            raise SuiteError(f"{len(said)} parts of documents or more are wanted, the corpus has {len(parts)}")
        places = random.sample(range(len(parts)), len(said))
        case = _shown(parts)
        passages, own = [*case.passages], set[int]()
        for place, (sentence, is_own) in zip(places, said, strict=True):
            passages[place] = replace(passages[place], text=_with_sentence(parts[place].text, sentence, random=random))
            own |= {place} if is_own else set()
        foreign = tuple(at for at in range(len(parts)) if at not in own)
        return replace(asked, passages=tuple(passages), contexts=case.contexts, foreign=foreign)

    def _before(self, part: _Part) -> list[_Part]:
        """The parts right before one, as many as are shown of a document."""
        return [replace(part, at=at) for at in range(max(0, part.at - self._shape.own), part.at)]

    def _long_part(self, random: Random, *, words: int) -> tuple[_Part, list[_Part]]:
        """A part of more than so many words, and the parts of its document that are shown with it."""
        fitting = [each for each in self._parts if len(each.text.split()) > words]
        if not fitting:
            raise SuiteError(f"no part of a document has more than {words} words: name longer documents")
        part = random.choice(fitting)
        count, own = len(part.document.parts), self._shape.own
        first = max(0, min(part.at - random.randrange(own), count - own))
        return part, [replace(part, at=at) for at in range(first, min(count, first + own))]

    def _foreign(self, random: Random, count: int, *, but: CutDocument | None = None) -> list[_Part]:
        """Parts of other documents, each of another one as far as there are so many."""
        drawn = [each for each in random.sample(self._parts, len(self._parts)) if each.document is not but]
        first = {id(each.document): each for each in reversed(drawn)}
        firsts = [each for each in drawn if first[id(each.document)] is each]
        rest = [each for each in drawn if first[id(each.document)] is not each]
        return [*firsts, *rest][:count]


SUITES: dict[str, Callable[[DrawnCases, Random], Case]] = {
    "continuation": DrawnCases.continuation,
    "blanks": DrawnCases.blank,
    "copies": DrawnCases.copy,
    "examples": DrawnCases.examples,
    "records": DrawnCases.records,
    "parted records": lambda cases, random: cases.records(random, parted=True),
    "needle": DrawnCases.needle,
    "needles": lambda cases, random: cases.needle(random, keys=NEEDLES),
    "values": DrawnCases.values,
    "chain": DrawnCases.chain,
}


@dataclass(frozen=True, slots=True)
class _Person:
    name: str
    job: str
    town: str
    phone: str

    def parts(self, *, parted: bool, is_own: bool = False) -> list[_Part]:
        """The record, in one chunk or in two."""
        told, number = f"{self.name} is a {self.job} from {self.town}", f"The phone number is {self.phone}. {OFFICE}"
        texts = (f"{told} and has worked here for ten years.", number) if parted else (f"{told}. {number}",)
        return [_Part(CutDocument("", texts), at, is_own) for at in range(len(texts))]


def _people(random: Random) -> list[_Person]:
    """People who have nothing in common, those of the case first: their numbers differ in the first digit."""
    count = PEOPLE + OTHERS
    first, last, jobs, towns = (random.sample(some.split(), count) for some in (FIRST, LAST, JOBS, TOWNS))
    names = [f"{a} {b}" for a, b in zip(first, last, strict=True)]
    numbers = [*_numbers(random, PEOPLE), *_numbers(random, OTHERS)]
    return [_Person(*each) for each in zip(names, jobs, towns, numbers, strict=True)]


def _numbers(random: Random, count: int) -> list[str]:
    """Numbers of four digits that differ in the first one."""
    return [first + "".join(random.choices("0123456789", k=3)) for first in random.sample(DIGITS, count)]


def _asked(case: Case, given: str, *, right: str, wrong: Sequence[str]) -> Case:
    """The case, whose answer begins as given."""
    foils = tuple(f"{given} {each}" for each in wrong)
    return replace(case, answers=(f"{given} {right}", right), skip=given, foils=foils)


def _words_on(part: _Part) -> list[str]:
    """The words of a document from a part on, as many as a continuation takes."""
    words: list[str] = []
    for text in part.document.parts[part.at :]:
        words += text.split()
        if len(words) >= COPIED + FOLLOWING:
            break
    return words


def _named(part: _Part) -> str:
    return part.document.title or "a document"


def _with_sentence(text: str, said: str, *, random: Random) -> str:
    """The text with a sentence between two of it, or in its middle."""
    words = text.split()
    ends = [at + 1 for at, word in enumerate(words[:-1]) if word.endswith(".")] or [len(words) // 2]
    at = random.choice(ends)
    return " ".join([*words[:at], said, *words[at:]])


def _shown(parts: Sequence[_Part]) -> Case:
    """The parts as a case's passages; nothing is asked yet."""
    foreign = tuple(at for at, each in enumerate(parts) if not each.is_own)
    passages, contexts = tuple(each.passage for each in parts), tuple(each.context for each in parts)
    return Case("", passages, foreign=foreign, contexts=contexts)


def _ordered(own: Sequence[_Part], others: Sequence[_Part], *, order: str, random: Random) -> list[_Part]:
    if order == IN_ORDER:
        at = random.randrange(len(others) + 1)
        return [*others[:at], *own, *others[at:]]
    count = len(own) + len(others)
    places = {*random.sample(range(count), len(own))}
    following, rest = iter(own), iter(others)
    mixed = [next(following) if place in places else next(rest) for place in range(count)]
    while order == SHUFFLED and len(own) > 1 and _is_ascending([each.at for each in mixed if each.is_own]):
        random.shuffle(mixed)
    return mixed


def _is_ascending(numbers: Sequence[int]) -> bool:
    return all(a < b for a, b in pairwise(numbers))
