"""A small disk that fills up, breaks, and is mended while a service stands on it."""

import os
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.service.serving import wait_for

SIZE = 32 << 20
COMMANDS = ("mkfs.ext4", "mount", "umount")


class SmallDisk:
    """A file system in a file."""

    def __init__(self, folder: Path, block_bytes: int) -> None:
        self.path = folder / "disk"
        self._image, self._ballast = folder / "image", self.path / "ballast"
        self.path.mkdir()
        with self._image.open("wb") as image:
            image.truncate(SIZE)
        blocks = ["-b", str(block_bytes)]
        subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", *blocks, self._image], check=True)

    def mount(self) -> None:
        """Brings back what was on the disk for certain, as after a power cut where it broke before."""
        subprocess.run(["mount", "-o", "loop", self._image, self.path], check=True, capture_output=True)

    def remount(self, mode: str) -> None:
        """`ro`, `rw`; or `abort`: nothing is written any more, to open files neither, as after an error of the disk."""
        _once_idle("mount", "-o", f"remount,{mode}", self.path)

    def unmount(self) -> None:
        """Needs that nobody has a file open."""
        _once_idle("umount", self.path)

    def fill(self, *, but: int = 0) -> None:
        """Leaves no room at all, or so many bytes."""
        with self._ballast.open("ab", buffering=0) as ballast:
            for nbytes in (1 << 20, 1 << 10):
                with suppress(OSError):
                    while True:
                        ballast.write(bytes(nbytes))
            ballast.truncate(max(0, ballast.tell() - but))
            with suppress(OSError):
                os.fsync(ballast.fileno())

    def free(self) -> None:
        """Gives all the room back."""
        self._ballast.unlink(missing_ok=True)


def _once_idle(*command: str | Path) -> None:
    """Runs what is refused while somebody has a file open: children of a killed service end a little later than it."""

    wait_for(
        lambda: subprocess.run(command, check=False, capture_output=True).returncode == 0,
        f"nobody stands in the way of {command}",
    )


@contextmanager
def small_disk(folder: Path, *, block_bytes: int) -> Generator[SmallDisk]:
    """A disk that is gone with the block. Skips the test where none can be mounted."""
    missing = [each for each in COMMANDS if shutil.which(each) is None]
    if missing or os.geteuid():
        pytest.skip(f"a small disk needs root and the commands {', '.join(COMMANDS)}")
    disk = SmallDisk(folder, block_bytes)
    try:
        disk.mount()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"a small disk cannot be mounted here: {error.stderr}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", disk.path], check=False)
