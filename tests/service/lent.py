"""What services of this process have one after the other, and none at the same time: applications and models.

To build an application and to load the model is most of what a start takes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI

from blend.adopt.load import LoadedModel, load
from service.app.core import Core
from service.builtin import CHECKPOINT
from tests.service.checkpoints import small

Make = Callable[[Callable[[], Core]], FastAPI]


@dataclass(slots=True)
class Lent:
    """An application and the core that it has at the moment."""

    core: Core
    app: FastAPI


_applications: dict[Make, list[Lent]] = defaultdict(list)
_models: dict[tuple[str, str, str], list[LoadedModel]] = defaultdict(list)


@contextmanager
def application_over(core: Core, make: Make) -> Iterator[FastAPI]:
    """An application over this core until the end of the block, made where all others are lent."""
    idle = _applications[make]
    if idle:
        lent = idle.pop()
        lent.core = core
        lent.app.middleware_stack = None  # its limits are new: they know nobody who came before
    else:
        lent = Lent(core, FastAPI())
        lent.app = make(lambda: lent.core)
    yield lent.app
    idle.append(lent)


def lend_model(until: ExitStack, name: str, *, device: str, dtype: str, digests: Path | None) -> LoadedModel:
    """In the place of `load`: one of the two usual models is a service's own until its end, and then the next one's."""
    if name != str(CHECKPOINT) and not (small.cache_info().currsize and name == small()):
        return load(name, device=device, dtype=dtype, digests=digests)
    idle = _models[name, device, dtype]
    model = idle.pop() if idle else load(name, device=device, dtype=dtype, digests=digests)
    until.callback(idle.append, model)
    return model


def built_now(make: Make) -> Make:
    """In the place of `make`: the one application of this process is there before its core is."""
    makes: list[Callable[[], Core]] = []

    def core() -> Core:
        return makes[-1]()

    app = make(core)

    def given(core_of: Callable[[], Core]) -> FastAPI:
        makes.append(core_of)
        return app

    return given
