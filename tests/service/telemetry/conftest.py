"""Around every test of telemetry: the loggers are as they were."""

import logging
from collections.abc import Iterator

import pytest

from service.telemetry import logs


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """The loggers as they were."""
    loggers = [logging.getLogger(name) for name in ("", *logs.OURS, "uvicorn.error", "uvicorn.access")]
    before = [(each, each.level, each.handlers, each.propagate, list(each.filters)) for each in loggers]
    yield
    for logger, level, handlers, propagate, filters in before:
        logger.setLevel(level)
        logger.handlers, logger.propagate, logger.filters = handlers, propagate, filters
