"""A prompt on its way to vLLM while our own engine still computes it. Knows neither of both."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager

from blend.engine.engine import Ready
from blend.errors import PromptError
from service.errors import Exhausted
from service.vllm.handoff_receiver import HandoffReceiver
from service.vllm.handoffs import Lease


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
