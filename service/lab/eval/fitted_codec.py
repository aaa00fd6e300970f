"""Fits how many bits the keys and values of each layer get: those on which answers depend little get fewer.

What a part costs is the divergence where it alone is packed coarsely; a bit more divides that by four. Bits go where
they save most for their bytes. Neighbouring layers that cost about as much share their bits, so that names stay short.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean

from blend.adopt.load import LoadedModel
from blend.run.context import LayerShape
from service.app.operating_point import LOSSLESS, OperatingPoint
from service.errors import Invalid
from service.lab.eval.case_probe import CaseProbe
from service.lab.questions.cases import Case
from service.model.codec_check import check_codec
from service.settings import SettingsError
from store.codec.spec import KVBits, Spec

PROMPTS = 4  # that are looked at: costs of parts differ by orders of magnitude, so that few tell them
COARSE, FINE = 3.0, 8.0  # bits of the part that is looked at, and of all others
WHOLE = (3.0, 4.0, 5.0, 6.0, 8.0)
BETWEEN = (1.8, 2.3)  # below four bits in all; codes of a trellis take longer to pack and to unpack
AT_ONCE = 16  # parts whose records are in memory at one time
STRETCHES = 16  # of layers that share their bits, at most
LEAST = 1e-9  # nats: a part that costs no more costs nothing

Part = tuple[int, str]  # a layer, and which of its two


@dataclass(frozen=True, slots=True)
class Stretch:
    """Layers in a row whose bits are the same: their numbers, and what keys and values cost and how many they are."""

    layers: range
    costs: tuple[float, float]
    numbers: tuple[int, int]

    def joined(self, following: "Stretch") -> "Stretch":
        (keys, values), (more_keys, more_values) = self.costs, following.costs
        numbers = (self.numbers[0] + following.numbers[0], self.numbers[1] + following.numbers[1])
        layers = range(self.layers.start, following.layers.stop)
        return Stretch(layers, (keys + more_keys, values + more_values), numbers)

    def unlike(self, following: "Stretch") -> float:
        """How much is lost where both get the same bits, about."""
        weight = len(self.layers) * len(following.layers) / (len(self.layers) + len(following.layers))
        pairs = zip(self.costs, following.costs, self.numbers, following.numbers, strict=True)
        return weight * sum(math.log((one / many) / (other / more)) ** 2 for one, other, many, more in pairs)


class CodecFitting:
    """Looks at a model's layers one after another. `rounds`: how often prompts are asked."""

    def __init__(self, model: LoadedModel, cases: Sequence[Case], *, answer_tokens: int) -> None:
        self._shapes = model.decoder.model_layers.shapes
        self._keeping = [layer for layer in model.decoder.model_layers.keeping if self._shapes[layer]]
        if model.decoder.model_layers.states:
            raise Invalid("--fit-codec is for models whose layers all keep keys and values: name a codec for this one")
        self._probe = CaseProbe(model, answer_tokens=answer_tokens, system=cases[0].system)
        self._cases = cases[:PROMPTS]
        self.rounds = len(self._cases) * math.ceil(2 * len(self._keeping) / AT_ONCE)
        self._decoder = model.decoder

    def close(self) -> None:
        self._probe.close()

    def run(self, codecs: Sequence[str], progress: Callable[[int], None]) -> dict[str, str]:
        """The codecs that pack all layers alike, each with a fitted one of the same size."""
        wanted = {codec: Spec.parse(codec).parts for codec in codecs}
        plain = {codec: bits for codec, ((_, bits), *more) in wanted.items() if not more and isinstance(bits, KVBits)}
        stretches = self._stretches(self._costs(progress)) if plain else []
        return {codec: self._named(bits, stretches) for codec, bits in plain.items()}

    def _costs(self, progress: Callable[[int], None]) -> dict[Part, float]:
        parts = [(layer, which) for layer in self._keeping for which in "kv"]
        found: dict[Part, list[float]] = {part: [] for part in parts}
        asked = 0
        for case in self._cases:
            for first in range(0, len(parts), AT_ONCE):
                some = parts[first : first + AT_ONCE]
                points = [OperatingPoint("reuse", 0.0, self._coarse(part)) for part in some]
                told = self._probe.measure(case, [OperatingPoint("reuse", 0.0, LOSSLESS), *points]).outcomes
                for part, point in zip(some, points, strict=True):
                    divergence = told[point].codec
                    found[part].append(divergence.kl if divergence else 0.0)
                asked += 1
                progress(asked)
        return {part: max(LEAST, fmean(each)) for part, each in found.items()}

    def _coarse(self, part: Part) -> str:
        """The codec that packs this part coarsely, and all else finely."""
        fine, (layer, which) = KVBits(FINE, FINE), part
        coarse = KVBits(COARSE, FINE) if which == "k" else KVBits(FINE, COARSE)
        return joined([coarse if each == layer else fine for each in range(len(self._shapes))])

    def _stretches(self, costs: dict[Part, float]) -> list[Stretch]:
        found = list[Stretch]()
        for layer, shape in enumerate(self._shapes):
            if shape and layer in self._keeping:
                found.append(Stretch(range(layer, layer + 1), (costs[layer, "k"], costs[layer, "v"]), _numbers(shape)))
        while len(found) > STRETCHES:
            at = min(range(len(found) - 1), key=lambda at: found[at].unlike(found[at + 1]))
            found[at : at + 2] = [found[at].joined(found[at + 1])]
        return found

    def _named(self, wanted: KVBits, stretches: Sequence[Stretch]) -> str:
        """A codec of the same size, by its name; the wanted one where coarser parts lose too much of the model's."""
        keys, values = (sum(each.numbers[which] for each in stretches) for which in (0, 1))
        size = wanted.keys * keys + wanted.values * values
        levels = WHOLE if size >= WHOLE[1] * (keys + values) else (*BETWEEN, *WHOLE)
        while levels and levels[0] * (keys + values) <= size:
            bits = [wanted] * len(self._shapes)
            for stretch, given in zip(stretches, dealt(stretches, size, levels=levels), strict=True):
                bits[stretch.layers.start : stretch.layers.stop] = [KVBits(*given)] * len(stretch.layers)
            name = joined(bits)
            try:
                check_codec(self._decoder, name)
            except SettingsError:
                levels = levels[1:]
            else:
                return name
        return wanted.text


def dealt(stretches: Sequence[Stretch], size: float, *, levels: Sequence[float]) -> list[tuple[float, float]]:
    """Bits for keys and values of each stretch, so many in all at most: each step goes where it saves most a bit."""
    at = [[0, 0] for _ in stretches]
    left = size - levels[0] * sum(sum(each.numbers) for each in stretches)

    def steps() -> Iterator[tuple[float, float, int, int, int]]:
        for number, each in enumerate(stretches):
            for which in (0, 1):
                now = at[number][which]
                for level in range(now + 1, len(levels)):
                    price = (levels[level] - levels[now]) * each.numbers[which]
                    saved = each.costs[which] * (4.0 ** -levels[now] - 4.0 ** -levels[level])
                    if price <= left:
                        yield saved / price, price, number, which, level

    while best := max(steps(), default=None):
        _, price, number, which, level = best
        at[number][which] = level
        left -= price
    return [(levels[keys], levels[values]) for keys, values in at]


def _numbers(shape: LayerShape) -> tuple[int, int]:
    return shape.key_heads * shape.key_dim, shape.value_heads * shape.value_dim


def joined(bits: Sequence[KVBits]) -> str:
    """The name of a codec with these bits, layer by layer."""
    runs = [(each.text, len([*layers])) for each, layers in groupby(bits)]
    stops, names, behind = list[str](), [name for name, _ in runs], 0
    for _, layers in runs[:-1]:
        behind += layers
        stops.append(f"@{behind}-")
    return "".join(f"{name}{stop}" for name, stop in zip(names, [*stops, ""], strict=True))
