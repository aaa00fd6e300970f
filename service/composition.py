"""The composition root: the one place that chooses concrete classes."""

from transformers.utils import logging

from blend.load import Model, load
from service.builtin import CHECKPOINT
from service.settings import Settings
from store.base import BlobStore
from store.url import open_store


def compose_store(settings: Settings) -> BlobStore:
    """The store that the settings name."""
    return open_store(settings.store)


def compose_model(settings: Settings) -> Model:
    """The model that the settings name; `builtin` is the one that comes with kvweave."""
    name = settings.model
    if name == "builtin":
        name = str(CHECKPOINT)
        logging.disable_progress_bar()  # it is there in no time
    return load(name, device=None if settings.device == "auto" else settings.device, dtype=settings.dtype)
