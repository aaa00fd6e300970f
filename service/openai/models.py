"""GET /v1/models: the one model, its window and how it searches, by any of its names; another name is not found."""

from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from service.api.caller import By
from service.errors import ModelNotFound
from service.openai.answer_bodies import Model, ModelList

if TYPE_CHECKING:
    from service.app.core import Core

ALIAS: Final = "default"  # of the one model, whatever its name


def check_model(core: "Core", name: str) -> None:
    """Raises ModelNotFound for another model than the one that there is."""
    if name not in (core.model_name, ALIAS):
        raise ModelNotFound(f"The model {name[:80]!r} does not exist: this service has {core.model_name!r}")


def models(by: By) -> ModelList:
    core, library = by.core, by.core.tenant(by.who).library
    with library.catalog.view() as view:
        mode, waits = library.mode(view), library.awaited(view, counts=not by.is_bound)
    model = Model(
        id=core.model_name,
        created=int(core.created),
        max_model_len=core.model.window,
        search=mode,
        search_waits=waits,
        embedder=core.embedder_name,
    )
    return ModelList(data=[model])


def model_named(by: By, model: str) -> Model:
    check_model(by.core, unquote(model))  # a slash in a name comes as it is, or encoded still
    return models(by).data[0]
