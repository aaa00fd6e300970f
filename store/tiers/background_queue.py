"""A bounded queue of background tasks, and one thread that runs them. Knows nothing of blobs."""

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from store.errors import StoreClosed

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Task:
    nbytes: int
    run: Callable[[], None]


class BackgroundQueue:
    """Runs tasks in order of arrival. `submit` never waits: a task that does not fit is refused."""

    def __init__(self, name: str, limit_bytes: int) -> None:
        self._name = name
        self._limit = limit_bytes
        self._tasks: deque[_Task] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._queued_bytes = 0
        self._submitted = 0
        self._done = 0
        self._closed = False

    def submit(self, nbytes: int, run: Callable[[], None]) -> bool:
        """Queue a task that holds `nbytes`; False where the queue is full. One task always fits an empty queue."""
        with self._changed:
            if self._closed:
                raise StoreClosed(f"the queue of {self._name} is closed")
            if self._queued_bytes and self._queued_bytes + nbytes > self._limit:
                return False
            self._tasks.append(_Task(nbytes, run))
            self._queued_bytes += nbytes
            self._submitted += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=f"behind-{self._name}", daemon=True)
                self._thread.start()
            self._changed.notify_all()
            return True

    def wait(self) -> None:
        """Wait until all tasks submitted before have ended, in success or failure."""
        with self._changed:
            wanted = self._submitted
            self._changed.wait_for(lambda: self._done >= wanted)

    def close(self) -> None:
        """Finish what is queued and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._tasks) or self._closed)
                if not self._tasks:
                    return
                task = self._tasks.popleft()
            self._run(task)

    def _run(self, task: _Task) -> None:
        try:
            task.run()
        except Exception as error:  # the worker's outermost loop: no caller waits for a task's result
            log.warning("a queued task failed", extra={"store": self._name}, exc_info=error)
        finally:
            with self._changed:
                self._queued_bytes -= task.nbytes
                self._done += 1
                self._changed.notify_all()
