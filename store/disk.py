"""Makes what was written to a disk survive a power cut. Knows paths alone."""

import os
from pathlib import Path


def sync_to_disk(place: Path) -> None:
    """Flush a file, or a folder's list of names, to the disk."""
    handle = os.open(place, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
