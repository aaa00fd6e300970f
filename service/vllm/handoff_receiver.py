"""A prompt on its way to vLLM while our own engine still computes it, layer by layer. Knows no HTTP."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from threading import Lock

from blend.engine.engine import PlacedPrompt, Ready
from blend.errors import PromptError
from blend.run.context import Context
from service.errors import Exhausted
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


class HandedPrompt:
    """A prompt of which a layer is there at least; the others follow."""

    def __init__(self, lease: Lease, fusing: "asyncio.Future[Ready]") -> None:
        self._lease = lease
        self._fusing = fusing

    @property
    def params(self) -> Mapping[str, object]:
        return handed_params(self._lease)

    async def ready(self) -> Ready | None:
        """Asked when vLLM's first token is there: what the fuse told; None where vLLM computed the prompt itself."""
        if not self._lease.was_fetched:
            self._fusing.cancel()
            return None
        return await self._fusing


def handed_params(lease: Lease) -> Mapping[str, object]:
    """What vLLM's connector is told of a prompt."""
    handoff = lease.handoff
    return {"kvweave": {"handle": lease.handle, "tokens": len(handoff.ids), "digest": handoff.digest}}


@asynccontextmanager
async def handing_over(
    receiver: HandoffReceiver, fuse: Callable[[HandoffReceiver], Coroutine[None, None, Ready]]
) -> AsyncGenerator[HandedPrompt | None]:
    """Has a prompt computed, which can be fetched from its first layer on. None where there is no room for it."""
    fusing = asyncio.ensure_future(fuse(receiver))
    begun = asyncio.wrap_future(receiver.begun)
    fusing.add_done_callback(lambda ended: receiver.close() if ended.cancelled() or ended.exception() else None)
    try:
        await asyncio.wait({fusing, begun}, return_when=asyncio.FIRST_COMPLETED)
        if begun.done():
            yield HandedPrompt(receiver.lease, fusing)
        elif isinstance(fusing.exception(), Exhausted | PromptError):
            yield None
        else:
            fusing.result()
            raise AssertionError("a prompt was computed of which no layer is there")
    finally:
        for each in (fusing, begun):
            each.cancel()
        await asyncio.gather(fusing, begun, return_exceptions=True)
        receiver.close()
