"""How near is near, for an embedder: its cosines of questions with what has nothing to do with them. Knows no catalog.

Cosines of one embedder say nothing beside another's: unrelated texts have 0.0 by one, 0.7 by the other.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from retriever.embedders.embedding import Embedder

FAR = 1.2  # times as far as the nearest of so many normal numbers: tails are longer than theirs

QUESTIONS = (
    "How long do eggs have to boil?",
    "Who may park in the yard?",
    "When was the bridge built?",
    "What does the warranty cover?",
    "How do I reset my password?",
    "Which animals live in the reserve?",
    "How many days of leave do I have?",
    "What is the boiling point of ethanol?",
    "How do I sort a list backwards?",
    "Where do I hand in the form?",
    "Why does the engine not start?",
    "Who leads the committee?",
)
ANSWERS = (  # of the question at the same place
    "Put the eggs into boiling water and take them out after eight minutes.",
    "The spaces in the courtyard are reserved for tenants with a permit.",
    "Work on the crossing began in 1871, and it was opened to traffic four years later.",
    "Faults of material are repaired for two years, damage by water is excluded.",
    "Choose 'forgotten' at the login page, and follow the link in the mail.",
    "Herds of antelopes graze there, and leopards have been seen by rangers.",
    "Every employee is entitled to twenty-eight days of holiday a year.",
    "At normal pressure the alcohol turns to vapour at 78 degrees Celsius.",
    "With reverse=True the items come in descending order.",
    "Bring the completed application to the counter on the first floor.",
    "Check whether the battery is flat and whether there is fuel in the tank.",
    "The chair is elected by its members for three years, and may be elected again.",
)


@dataclass(frozen=True, slots=True)
class Nearness:
    """The cosines of an embedder for what has nothing to do with a question: their mean, and how far they spread."""

    apart: float
    spread: float

    def chance(self, chunks: int) -> float:
        """How near the nearest of so many chunks is that have nothing to do with a question: the more, the nearer."""
        return self.apart + FAR * self.spread * math.sqrt(2 * math.log(max(chunks, 2)))


@lru_cache(maxsize=8)
def nearness(embedder: Embedder) -> Nearness:
    """The nearness of an embedder, which computes a few short texts for it once. Raises EmbeddingError."""
    asked = np.stack([embedder.query(question) for question in QUESTIONS])
    cosines = asked @ embedder.passages(ANSWERS).T
    others = cosines[~np.eye(len(QUESTIONS), dtype=bool)]
    return Nearness(float(others.mean()), float(others.std()))
