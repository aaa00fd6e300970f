"""The names by which the one model is asked for."""

from typing import TYPE_CHECKING, Final

from service.errors import ModelNotFound

if TYPE_CHECKING:
    from service.app.core import Core

ALIAS: Final = "default"  # of the one model, whatever its name


def check_model(core: "Core", name: str) -> None:
    """Raises ModelNotFound for another model than the one that there is."""
    if name not in (core.model_name, ALIAS):
        raise ModelNotFound(f"The model {name[:80]!r} does not exist: this service has {core.model_name!r}")
