"""What is counted and told of those who were turned away."""

import logging

import pytest

from service.telemetry.metrics import Metrics
from service.telemetry.refusals import TOLD_EVERY_S, Refusals


def test_each_is_counted_and_one_line_a_minute_tells_of_a_limit(caplog: pytest.LogCaptureFixture) -> None:
    metrics, now = Metrics(), [0.0]
    refusals = Refusals(metrics, clock=lambda: now[0])
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            refusals.add("key")
        refusals.add("slow_body")
        assert len(caplog.records) == 2
        now[0] += TOLD_EVERY_S
        refusals.add("key")
        assert len(caplog.records) == 3
    text = metrics.render()[0].decode()
    assert 'kvweave_refusals_total{limit="key"} 101.0' in text
    assert 'kvweave_refusals_total{limit="slow_body"} 1.0' in text
