"""The words of the made-up world: names built of stems and endings, and plain English nouns. Knows no grammar."""

from dataclasses import dataclass
from itertools import product
from random import Random


def _listed(words: str) -> list[str]:
    return words.split()


_STEMS = _listed(
    "Bel Cor Dal Fen Gar Hal Ist Jor Kel Lun Mar Nor Orm Pel Quin Ros Sel Tar Ulm Ver "
    "Wil Yar Zan Bri Cal Dor Elm Fro Gil Hol Ing Jas Kor Lar Min Nel Osk Pra Rud Sim"
)
_ENDINGS = {
    "person": _listed("a en io is o us ina ette"),
    "city": _listed("ford haven mouth stad ton bury dale port"),
    "company": _listed("tek works ware dyne soft labs line craft"),
    "project": _listed("ark eon ix ora um ant ida olt"),
}
_COMMON = {"person": 96, "city": 56, "company": 56, "project": 56}
_MANY = {"person": 160, "city": 104, "company": 104, "project": 104}
_NOUNS = {
    "animal": _listed("heron weasel fox badger magpie goat pony raven lizard hedgehog"),
    "food": _listed("tea cider plums honey barley soup pears nuts bread cheese"),
    "trade": _listed("cooper smith weaver painter tanner potter mason printer baker brewer"),
    "good": _listed("lamps boats clocks ropes bells kites boots wheels candles barrels"),
    "colour": _listed("green red blue grey white black brown yellow purple silver"),
    "month": _listed("January February March April May June July August September October November December"),
    "number": [str(number) for number in range(11, 100)],
    "role": _listed(
        "captain keeper pilot judge warden scribe steward envoy marshal regent curator herald "
        "abbot bailiff butler consul deputy duke forester notary prior sexton usher verger"
    ),
    "code": [letter + digit for letter, digit in product("ABCDEFGHJKLMNPRSTVXZ", "123456789")],
}


def _names(kind: str) -> list[str]:
    """Every name of a kind, in an order where the first ones use every stem alike."""
    stems, endings = _STEMS, _ENDINGS[kind]
    return [
        stem + endings[(turn + place) % len(endings)]
        for turn in range(len(endings))
        for place, stem in enumerate(stems)
    ]


NAMES = {kind: _names(kind) for kind in _ENDINGS}


@dataclass(frozen=True, slots=True)
class Entity:
    """Something that has a name and facts."""

    kind: str
    name: str


class WordDrawer:
    """Draws words without drawing one twice. `rare` is the share of names beyond the common ones, be they `many`."""

    def __init__(self, random: Random, *, rare: float, many: bool) -> None:
        self._random = random
        self._rare = rare
        self._common = _MANY if many else _COMMON
        self._used: set[str] = set()

    def entity(self, kind: str) -> Entity:
        common = self._common[kind]
        names = NAMES[kind]
        pool = names[common:] if self._random.random() < self._rare else names[:common]
        if self._used.issuperset(pool):
            pool = names
        return Entity(kind, self._new(pool))

    def fresh(self, kind: str) -> str:
        """A noun that the scene has not used yet."""
        return self._new(_NOUNS[kind])

    def noun(self, kind: str) -> str:
        return self._random.choice(_NOUNS[kind])

    def _new(self, pool: list[str]) -> str:
        left = [word for word in pool if word not in self._used]
        assert left, "a scene uses more names than there are"
        word = self._random.choice(left)
        self._used.add(word)
        return word
