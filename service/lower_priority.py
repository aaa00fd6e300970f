"""Which threads go first where there are too few processors: those that answer at once before those that compute."""

import os
import sys
import threading

COMPUTES, LATER = 5, 10  # steps: for what somebody waits for, and for what nobody does


def lower_priority(steps: int, *, of: threading.Thread | None = None) -> None:
    """Puts this thread, or another one, behind others, with those that it begins from now on. On Linux alone."""
    if sys.platform == "linux":
        thread = threading.get_native_id() if of is None else of.native_id or 0
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + steps)
