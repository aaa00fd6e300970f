"""Whether arrivals are read out of both kinds of traces, and a rate between two points."""

from pathlib import Path

import pytest

from tests.bench.block_traces import arrivals
from tests.bench.rates import Point, reached

MOONCAKE = '{"timestamp": 1000, "hash_ids": [0]}\n{"timestamp": 3500, "hash_ids": [1]}\n'
BURST = "Timestamp,Session ID,Request tokens\n5,a,300\n7.5,b,200\n"


@pytest.mark.parametrize(("name", "text"), [("trace.jsonl", MOONCAKE), ("trace.csv", BURST)])
def test_arrivals_are_seconds_from_the_first_request_on(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, "utf-8")
    assert arrivals(tmp_path / name) == [0.0, 2.5]


@pytest.mark.parametrize(("p95", "found"), [(0.5, ("below ", 1.0)), (1.5, ("", 1.5)), (4.0, ("above ", 2.0))])
def test_the_rate_at_a_p95_lies_between_its_points(p95: float, found: tuple[str, float]) -> None:
    points = [Point(rate, [seconds], 1.0, rate) for rate, seconds in ((1.0, 1.0), (2.0, 2.0))]
    assert reached(points, p95) == found
