"""Archives for tests: taken apart, changed, and put together again."""

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

import zstandard

Parts = list[tuple[tarfile.TarInfo, bytes]]


def take_apart(file: Path) -> Parts:
    content = zstandard.ZstdDecompressor().stream_reader(file.read_bytes()).read()
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        files = [(info, tar.extractfile(info)) for info in tar]
        return [(info, data.read() if data else b"") for info, data in files]


def put_together(file: Path, parts: Iterable[tuple[tarfile.TarInfo, bytes]]) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for info, data in parts:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    file.write_bytes(zstandard.ZstdCompressor().compress(out.getvalue()))


def member(name: str, *, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info
