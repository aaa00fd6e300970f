"""The composition root: the one place that chooses concrete classes."""

from service.settings import Settings
from store.base import BlobStore
from store.url import open_store


def compose_store(settings: Settings) -> BlobStore:
    """The store that the settings name."""
    return open_store(settings.store)
