"""Prompts with one right number: records that are alike, and needles in foreign prose. What is made up is drawn anew.

Records of a kind are a collection of their own, so their filler is other records; a needle's is of the prose around it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from service.model.prompt_builder import PromptPassage
from tests.bench.real.drawn_prompt import DrawnPassage, DrawnPrompt
from tests.bench.real.forms import Material, Shape, foreign_passages

PEOPLE, OTHERS = 4, 8  # of a prompt's records; of the filler's and the spare one
NEEDLES = 4  # of several in a prompt, each with a key of its own
DIGITS = "123456789"
FIRST = ("Anna", "Peter", "Maria", "John", "Yuki", "Omar", "Elena", "David", "Lucy", "Hugo", "Nina", "Carlos")
LAST = (
    "Lopez",
    "Schmidt",
    "Rossi",
    "Carter",
    "Tanaka",
    "Haddad",
    "Petrova",
    "Cohen",
    "Brown",
    "Martin",
    "Berg",
    "Diaz",
)
JOBS = (
    "painter",
    "dentist",
    "pilot",
    "baker",
    "lawyer",
    "nurse",
    "farmer",
    "plumber",
    "judge",
    "singer",
    "tailor",
    "butcher",
)
TOWNS = ("Lisbon", "Hamburg", "Rome", "Boston", "Kyoto", "Cairo", "Moscow", "Haifa", "Leeds", "Lyon", "Oslo", "Lima")
KEYS = ("falcon", "otter", "badger", "raven", "lynx", "heron", "weasel", "marten", "gecko", "bison", "viper", "crane")
OFFICE = "The office is on the first floor."

Parts = Callable[["_Person"], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class _Person:
    name: str
    job: str
    town: str
    phone: str


def records(material: Material, shape: Shape, *, number: int) -> DrawnPrompt:
    """Four people, each with a phone number in the same chunk."""
    return _of_people(f"{material.seed}/records/{number}", _whole)


def parted_records(material: Material, shape: Shape, *, number: int) -> DrawnPrompt:
    """Four people, each with a phone number in the chunk behind the one with the name."""
    return _of_people(f"{material.seed}/parted/{number}", _parted)


def needle(material: Material, shape: Shape, *, number: int) -> DrawnPrompt:
    """One number of a key stands somewhere in foreign prose."""
    return _needles(material, shape, number=number, count=1)


def needles(material: Material, shape: Shape, *, number: int) -> DrawnPrompt:
    """Numbers of several keys stand in foreign prose; one is asked for."""
    return _needles(material, shape, number=number, count=NEEDLES)


FACTS: dict[str, Callable[..., DrawnPrompt]] = {
    "records": records,
    "parted records": parted_records,
    "needle": needle,
    "needles": needles,
}


def _whole(person: _Person) -> tuple[str, ...]:
    return (f"{person.name} is a {person.job} from {person.town}. The phone number is {person.phone}. {OFFICE}",)


def _parted(person: _Person) -> tuple[str, ...]:
    return (
        f"{person.name} is a {person.job} from {person.town} and has worked here for ten years.",
        f"The phone number is {person.phone}. {OFFICE}",
    )


def _of_people(seed: str, parts: Parts) -> DrawnPrompt:
    random = Random(seed)
    drawn = _people(random)
    people, others = drawn[:PEOPLE], drawn[PEOPLE:]
    asked = random.choice(people)
    spare, *fillers = [_documents(parts(each), is_own=False) for each in others]
    right, wrong = asked.phone, [each.phone for each in people if each != asked]
    given = f"The phone number of {asked.name} is"
    return DrawnPrompt(
        tuple(each for person in people for each in _documents(parts(person), is_own=person == asked)),
        f"What is the phone number of {asked.name}?",
        given,
        f"{given} {right}",
        spare[0],
        tuple(each.passage for some in fillers for each in some),
        (right, *wrong),
    )


def _people(random: Random) -> list[_Person]:
    """People who have nothing in common, those of the prompt first: their numbers differ in the first digit."""
    count = PEOPLE + OTHERS
    first, last, jobs, towns = (random.sample(some, count) for some in (FIRST, LAST, JOBS, TOWNS))
    names = [f"{a} {b}" for a, b in zip(first, last, strict=True)]
    numbers = [*_numbers(random, PEOPLE), *_numbers(random, OTHERS)]
    return [_Person(*each) for each in zip(names, jobs, towns, numbers, strict=True)]


def _numbers(random: Random, count: int) -> list[str]:
    """Numbers of four digits that differ in the first one."""
    return [first + "".join(random.choices("0123456789", k=3)) for first in random.sample(DIGITS, count)]


def _documents(texts: tuple[str, ...], *, is_own: bool) -> list[DrawnPassage]:
    """The chunks of one document without a title, each behind the one before."""
    shown = [PromptPassage(text) for text in texts]
    return [DrawnPassage(each, before, is_own) for each, before in zip(shown, [None, *shown[:-1]], strict=True)]


def _needles(material: Material, shape: Shape, *, number: int, count: int) -> DrawnPrompt:
    """One sentence is put between two of a passage. Only the passage that is asked of is the prompt's own."""
    random = Random(f"{material.seed}/needle {count}/{number}")
    prose, filler = foreign_passages(material, shape, random)
    spare, *passages = prose
    keys, found = random.sample(KEYS, count), _numbers(random, count)
    places = random.sample(range(len(passages)), count)
    for key, value, place in zip(keys, found, places, strict=True):
        said = f"The special magic number of the {key} is {value}."
        passages[place] = _with(passages[place], said, random=random, is_own=place == places[0])
    wrong = found[1:] if count > 1 else [digit for digit in DIGITS if digit != found[0][0]]
    given = f"The special magic number of the {keys[0]} is"
    return DrawnPrompt(
        tuple(passages),
        f"What is the special magic number of the {keys[0]}?",
        given,
        f"{given} {found[0]}",
        spare,
        filler,
        (found[0], *wrong),
    )


def _with(drawn: DrawnPassage, said: str, *, random: Random, is_own: bool) -> DrawnPassage:
    words = drawn.passage.text.split()
    ends = [at + 1 for at, word in enumerate(words[:-1]) if word.endswith(".")] or [len(words) // 2]
    at = random.choice(ends)
    text = " ".join([*words[:at], said, *words[at:]])
    return replace(drawn, passage=replace(drawn.passage, text=text), is_own=is_own)
