"""The event loop goes before the threads that compute."""

import gc
import os
import sys
import threading
from types import SimpleNamespace
from typing import cast

import pytest

from service.answers.fair_turns import COMPUTES, LATER, lower_priority
from service.app.core import Core
from service.commands import serve

LOWEST = 19  # nice steps that Linux has: the tests themselves may run behind others

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads have one priority")


def steps(thread: threading.Thread) -> int:
    assert thread.native_id
    return os.getpriority(os.PRIO_PROCESS, thread.native_id)


def test_threads_that_compute_and_those_that_they_begin_step_back(monkeypatch: pytest.MonkeyPatch) -> None:
    over, begun = threading.Event(), list[threading.Thread]()
    here = steps(threading.current_thread())

    def lowered() -> None:
        lower_priority(LATER)
        begun.append(threading.Thread(target=over.wait))
        begun[0].start()
        over.wait()

    threads = [threading.Thread(target=over.wait, name=name) for name in ("kvweave-engine", "another")]
    threads.append(threading.Thread(target=lowered))
    try:
        for thread in threads:
            thread.start()
        for name in ("collect", "freeze"):  # which would change this process
            monkeypatch.setattr(gc, name, lambda: None)
        serve._settle_when_loaded(cast(Core, SimpleNamespace(wait=lambda: None)))
        while not begun or begun[0].native_id is None:
            threading.Event().wait(0.001)
        expected = [min(here + each, LOWEST) for each in (COMPUTES, 0, LATER, LATER)]
        assert [steps(each) for each in (*threads, *begun)] == expected
        assert steps(threading.current_thread()) == here
    finally:
        over.set()
        for thread in (*threads, *begun):
            thread.join()
