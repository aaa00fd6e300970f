"""A limit to the size of files, which now and then stands for a full disk. For processes that are killed afterwards."""

import resource
from collections.abc import Generator
from contextlib import contextmanager
from random import Random


@contextmanager
def limited_files(chance: Random) -> Generator[None]:
    """In a tenth of all blocks no file is written beyond some size; everybody in this process is concerned."""
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    if chance.random() < 0.1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(2 ** chance.uniform(10, 23)), most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))
