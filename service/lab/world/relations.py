"""The sentences of the made-up world: several ways to say a fact, to ask for it, and to give something another name.

`{S}` is the subject, `{V}` the value, `{X}` the other name of `{E}`. The first two ways to say a fact begin
with its subject.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Relation:
    """A fact of one kind: what may be its subject, what its value, how it is told and asked."""

    subject: str
    value: str
    says: tuple[str, ...]
    asks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Naming:
    """A way to give something another name; a topic's other name is a pronoun over the border of a chunk."""

    name: str
    kinds: tuple[str, ...]
    says: tuple[str, ...]
    asks: tuple[str, ...] = ()


THINGS = ("person", "city", "company", "project")

RELATIONS = (
    Relation(
        "person",
        "city",
        ("{S} lives in {V}.", "{S} has a house in {V}.", "The home of {S} is in {V}.", "{V} is the home of {S}."),
        ("Where does {S} live?", "In which city does {S} live?", "Where is the home of {S}?"),
    ),
    Relation(
        "person",
        "company",
        ("{S} works for {V}.", "{S} is employed by {V}.", "The employer of {S} is {V}.", "{V} employs {S}."),
        ("Who does {S} work for?", "Which company employs {S}?", "Who is the employer of {S}?"),
    ),
    Relation(
        "person",
        "animal",
        ("{S} keeps a {V}.", "{S} has a tame {V}.", "The animal of {S} is a {V}.", "A {V} is kept by {S}."),
        ("Which animal does {S} keep?", "What is the animal of {S}?"),
    ),
    Relation(
        "person",
        "food",
        (
            "{S} likes {V} best.",
            "{S} always asks for {V}.",
            "The favourite food of {S} is {V}.",
            "Only {V} pleases {S}.",
        ),
        ("What does {S} like best?", "What is the favourite food of {S}?"),
    ),
    Relation(
        "person",
        "trade",
        (
            "{S} is a {V} by trade.",
            "{S} learned to be a {V}.",
            "The trade of {S} is that of a {V}.",
            "The work of a {V} is done by {S}.",
        ),
        ("What is the trade of {S}?", "What did {S} learn to be?"),
    ),
    Relation(
        "project",
        "person",
        ("{S} is led by {V}.", "{S} is run by {V}.", "The leader of {S} is {V}.", "{V} leads {S}."),
        ("Who leads {S}?", "Who runs {S}?", "Who is the leader of {S}?"),
    ),
    Relation(
        "project",
        "company",
        ("{S} belongs to {V}.", "{S} is owned by {V}.", "The owner of {S} is {V}.", "{V} owns {S}."),
        ("Who owns {S}?", "Which company does {S} belong to?", "Who is the owner of {S}?"),
    ),
    Relation(
        "project",
        "month",
        ("{S} ends in {V}.", "{S} is due in {V}.", "The end of {S} is in {V}.", "In {V} comes the end of {S}."),
        ("When does {S} end?", "In which month is {S} due?"),
    ),
    Relation(
        "project",
        "number",
        (
            "{S} costs {V} coins.",
            "{S} has a budget of {V} coins.",
            "The price of {S} is {V} coins.",
            "For {V} coins one gets {S}.",
        ),
        ("How many coins does {S} cost?", "What is the price of {S} in coins?"),
    ),
    Relation(
        "company",
        "city",
        ("{S} is based in {V}.", "{S} has its seat in {V}.", "The seat of {S} is in {V}.", "{V} is the seat of {S}."),
        ("Where is {S} based?", "In which city is the seat of {S}?"),
    ),
    Relation(
        "company",
        "person",
        ("{S} was founded by {V}.", "{S} was started by {V}.", "The founder of {S} is {V}.", "{V} founded {S}."),
        ("Who founded {S}?", "Who started {S}?", "Who is the founder of {S}?"),
    ),
    Relation(
        "company",
        "good",
        ("{S} makes {V}.", "{S} has long made {V}.", "The product of {S} is {V}.", "Some {V} are made by {S}."),
        ("What does {S} make?", "What is the product of {S}?"),
    ),
    Relation(
        "city",
        "person",
        ("{S} is governed by {V}.", "{S} has elected {V}.", "The mayor of {S} is {V}.", "{V} governs {S}."),
        ("Who governs {S}?", "Who is the mayor of {S}?"),
    ),
    Relation(
        "city",
        "colour",
        ("{S} has a {V} flag.", "{S} flies a {V} flag.", "The flag of {S} is {V}.", "A {V} flag flies over {S}."),
        ("What colour is the flag of {S}?", "Which colour has the flag of {S}?"),
    ),
)

NAMINGS = {
    "topic": Naming(
        "topic",
        THINGS,
        ("The next page is about {E}.", "What follows is about {E}.", "The next lines describe {E}."),
    ),
    "role": Naming(
        "role",
        ("person",),
        ("The {X} is {E}.", "In this book, the {X} means {E}.", "{E} is the {X}."),
        ("Who is the {X}?", "Who does the {X} mean?"),
    ),
    "code": Naming(
        "code",
        THINGS,
        ("Code {X} stands for {E}.", "The code {X} means {E}.", "{E} has the code {X}."),
        ("What does code {X} stand for?", "What does the code {X} mean?"),
    ),
    "renaming": Naming(
        "renaming",
        THINGS,
        ("{X} is now called {E}.", "{X} was renamed {E}.", "{E} is the new name of {X}."),
        ("What is {X} called now?", "What is the new name of {X}?"),
    ),
}

ASIDES = (
    "Nothing else was noted on that day.",
    "The page has a stain at its edge.",
    "This was copied by hand from an older sheet.",
    "The weather had been calm for a week.",
    "All of this was read aloud and found correct.",
    "A few lines were crossed out later.",
    "The rest of the meeting was short.",
    "No one asked for more details.",
    "The ink is still easy to read.",
    "Some of the older notes were lost in a move.",
    "The list was checked twice before it was filed.",
    "It had rained, and the road was slow.",
    "There was little time to write more.",
    "The clerk added a date and a stamp.",
    "Visitors often ask about this part.",
    "A copy is kept in the cellar.",
    "The next entry came much later.",
    "Both sides agreed on the wording.",
    "A map was once attached here.",
    "The lamps were lit before the work was done.",
)

BOOKS = ("Register", "Letter", "Ledger", "Report", "Journal", "Survey")
