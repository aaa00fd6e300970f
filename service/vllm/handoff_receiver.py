"""Takes a prompt over while our own engine computes it, layer by layer. Knows no HTTP and nobody who fetches."""

from threading import Lock

from blend.engine.engine import PlacedPrompt
from blend.run.context import Context
from service.vllm.handoff import Handoff, promised
from service.vllm.handoffs import HandoffReaders, Handoffs, Lease


class HandoffReceiver:
    """See `PromptReceiver`. One prompt at a time waits under a handle: a fuse that begins anew gets another.

    `begun` is there with the first layer: from then on the prompt is worth asking for.
    """

    def __init__(self, handoffs: Handoffs, readers: HandoffReaders) -> None:
        self.begun = promised()
        self._handoffs = handoffs
        self._readers = readers
        self._lock = Lock()
        self._lease: Lease | None = None
        self._context: Context | None = None
        self._closed = False

    @property
    def lease(self) -> Lease:
        assert self._lease is not None, "the prompt's turn has come"
        return self._lease

    def begin(self, prompt: PlacedPrompt) -> None:
        """See `PromptReceiver.begin`. Raises Exhausted where there is no room for the prompt."""
        with self._lock:
            self._drop()
            if not self._closed:
                self._lease = self._handoffs.add(Handoff(prompt), self._readers)
                self._context = prompt.context

    def final(self, layer: int) -> None:
        with self._lock:
            if self._lease is None or self._context is None:
                return
            handoff = self._lease.handoff
            self._handoffs.put(self._lease, layer, pair=self._context.seen(layer, len(handoff.ids) - 1))
            if layer == handoff.forms[-1].index:
                self._context = None
            if not self.begun.done():
                self.begun.set_result(None)

    def close(self) -> None:
        """Lets go of the prompt, also of one that is yet to come."""
        with self._lock:
            self._closed = True
            self._drop()

    def _drop(self) -> None:
        if self._lease is not None:
            self._handoffs.drop(self._lease.handle)
        self._context = None
