"""Measures whether the time of an upload tells a key with a filter which texts hidden documents hold.

`python -m tests.bench.upload_times` prints one JSON object. An operator puts in half of the texts for another team; a
bound key uploads all of them in a drawn order, and times each until it serves. `guessed`: the share that the best
threshold on these times tells right, either way round. `by_chance`: that share's median, and `p` how often it is as
large, when the same times are dealt out at random: the best of many thresholds is above one half even then.
"""

import argparse
import json
import time
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory

from service.access.principal import Role
from tests.service.serving import in_process, put_in, settings_in

WORDS = 120  # of a text: enough that computing it shows beside the rest of an upload
DEALS = 1000


def text(number: int) -> str:
    chance = Random(number)
    return " ".join("".join(chance.choices("abcdefghijklmnop", k=5)) for _ in range(WORDS))


def guessed(times: list[tuple[float, bool]]) -> float:
    """The share that the best threshold tells right."""
    right = [hidden for _, hidden in sorted(times)]
    total, best, low = sum(right), 0, 0
    for below, hidden in enumerate(right, start=1):
        low += hidden
        told = low + (len(right) - below) - (total - low)  # those below are called hidden, those above are not
        best = max(best, told, len(right) - told)
    return best / len(right)


def timed(folder: Path, tries: int, chance: Random) -> list[tuple[float, bool]]:
    """Seconds of each upload, and whether a hidden document holds the text."""
    hidden = [number % 2 == 0 for number in range(tries)]
    chance.shuffle(hidden)
    times: list[tuple[float, bool]] = []
    with in_process(settings_in(folder)) as inside, inside.client() as operator:
        key = inside.core.control.create_key("default", Role.WRITE, bound={"team": "law"})[1]
        theirs = [
            {"id": f"hr {at}", "chunks": [{"text": text(at)}], "metadata": {"team": "hr"}}
            for at, held in enumerate(hidden)
            if held
        ]
        put_in(operator, theirs)
        with inside.client(key) as law:
            for warm in range(5):
                put_in(law, [{"id": f"warm {warm}", "chunks": [{"text": text(-1 - warm)}]}])
            for at, held in enumerate(hidden):
                start = time.perf_counter()
                put_in(law, [{"id": f"mine {at}", "chunks": [{"text": text(at)}]}])
                times.append((time.perf_counter() - start, held))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    chance = Random(arguments.seed)
    with TemporaryDirectory() as folder:
        times = timed(Path(folder), arguments.tries, chance)
    share, labels, dealt = guessed(times), [hidden for _, hidden in times], list[float]()
    for _ in range(DEALS):
        chance.shuffle(labels)
        dealt.append(guessed([(seconds, hidden) for (seconds, _), hidden in zip(times, labels, strict=True)]))
    medians = {str(held): median(seconds for seconds, hidden in times if hidden == held) for held in (True, False)}
    print(
        json.dumps(
            {
                "tries": len(times),
                "median_ms": {held: round(1000 * seconds, 2) for held, seconds in medians.items()},
                "guessed": round(share, 3),
                "by_chance": round(median(dealt), 3),
                "p": sum(each >= share for each in dealt) / DEALS,
            }
        )
    )


if __name__ == "__main__":
    main()
