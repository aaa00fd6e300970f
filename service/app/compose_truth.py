"""Chooses where keys and catalogs are kept, a folder or PostgreSQL. Loads no model, so commands on keys are quick."""

from service.settings import Settings, SettingsError
from service.truth.folder_truth import FolderTruth
from service.truth.truth import Truth


def compose_truth(settings: Settings, caches: str = "") -> Truth:
    """Opens what the settings name. Whoever asks for it closes it. `caches`: where a service has them."""
    if not settings.database:
        return FolderTruth(settings.data)
    try:
        from service.truth.postgres.postgres_truth import PostgresTruth
    except ImportError:
        raise SettingsError("data: install the extra `kvweave[postgres]` to keep it in PostgreSQL") from None
    return PostgresTruth(settings.database, settings.data, caches=caches)
