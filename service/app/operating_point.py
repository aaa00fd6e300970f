"""Operating points (policy, ratio, codec): the file of the one chosen for a model, and when settings go before it."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from service.builtin import POINT
from service.settings import BUILTIN, Settings, SettingsError
from service.truth.databases import POINTS
from store.codec.spec import LOSSLESS

CHOSEN = ("policy", "ratio", "codec")


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """How chunks are reused and packed."""

    policy: str
    ratio: float
    codec: str


FULL = OperatingPoint("full", 1.0, LOSSLESS)  # what all others are compared with


def point_file(settings: Settings, weights: str) -> Path:
    """The file that keeps the operating point of the model with these weights."""
    return settings.data / POINTS / f"{weights}.toml"


def operating_point(settings: Settings, weights: str, *, has_states: bool = False) -> OperatingPoint:
    """What the settings say; where they leave all of it to the defaults, what was chosen for this model.

    The built-in model comes with a point of its own. What no record tells of, as the states of some models' layers, is
    left exact until a point was chosen, or a policy is named.
    """
    file = point_file(settings, weights)
    if settings.model == BUILTIN and not file.is_file():
        file = POINT
    is_left = has_states and "policy" not in settings.model_fields_set
    said = OperatingPoint("prefix" if is_left else settings.policy, settings.ratio, settings.codec)
    if not settings.model_fields_set.isdisjoint(CHOSEN) or not file.is_file():
        return said
    try:
        found = tomllib.loads(file.read_text("utf-8"))
        chosen = Settings(**{name: found[name] for name in CHOSEN})  # checks each of them
    except (KeyError, ValueError, ValidationError, TypeError) as error:
        raise SettingsError(
            f"{file} is no operating point: remove it, or run kvweave eval --save auto again"
        ) from error
    return OperatingPoint(chosen.policy, chosen.ratio, chosen.codec)
