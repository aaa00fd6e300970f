"""Memory that a GPU reads itself, with a driver that is played; `test_placement.py` has the card."""

import gc
import logging

import numpy as np
import pytest
import torch

from service.model.pinned_memory import pinned_memory


class PlayedDriver:
    """Pins so many pieces."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.pinned: dict[int, int] = {}

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:
        assert address % 4096 == 0 and nbytes % 4096 == 0 and flags == 1
        if len(self.pinned) == self.most:
            return 2
        self.pinned[address] = nbytes
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        del self.pinned[address]
        return 0


def test_pages_are_pinned_while_any_view_of_them_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = PlayedDriver(2)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: driver)
    first, second = pinned_memory(1), pinned_memory(5000)
    assert first.is_pinned and second.is_pinned and sorted(driver.pinned.values()) == [4096, 8192]
    second.data[:] = 7
    view = second.data[4000:5000]
    del first, second
    gc.collect()
    assert [*driver.pinned.values()] == [8192] and bool((view == 7).all())
    del view
    gc.collect()
    assert not driver.pinned


def test_where_the_driver_pins_no_more_memory_is_ordinary(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    driver = PlayedDriver(0)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: driver)
    with caplog.at_level(logging.WARNING):
        memory = pinned_memory(10)
    assert not memory.is_pinned and memory.data.nbytes >= 10 and not np.any(memory.data)
    assert "pins no more memory (error 2)" in caplog.text
    del memory
    gc.collect()
