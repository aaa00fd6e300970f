"""The one object that a running application keeps. Knows no request."""

from typing import TYPE_CHECKING, cast

from fastapi import FastAPI

if TYPE_CHECKING:
    from service.app.core import Core


def core_of(app: FastAPI) -> "Core":
    """What the application was started with."""
    return cast("Core", app.state.core)
