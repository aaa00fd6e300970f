"""Files as the body of a request, piece by piece, as often as it is sent. Knows no endpoint."""

import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_ISREG

from kvweave_client.errors import RequestError

PIECE = 256 * 1024

_UNSENDABLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")

Progress = Callable[[int, int], None]  # bytes sent, and bytes in all


@dataclass(frozen=True, slots=True)
class File:
    """A file of the disk, or a name with its content. The suffix of the name says what it is."""

    content: bytes | Path = field(repr=False)
    name: str

    def __post_init__(self) -> None:
        if not isinstance(self.content, bytes | Path):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RequestError(f"{self.name}: its content must be bytes or a Path, got {type(self.content).__name__}")

    @staticmethod
    def at(path: str | Path) -> "File":
        """The file with this path."""
        return File(Path(path), Path(path).name)

    @property
    def size(self) -> int:
        """The file's size in bytes."""
        if isinstance(self.content, bytes):
            return len(self.content)
        try:
            status = self.content.stat()
        except (OSError, ValueError) as error:
            raise RequestError(f"{self.content} cannot be read: {error}") from error
        if not S_ISREG(status.st_mode):
            raise RequestError(f"{self.content} is no file: name the files in it one by one")
        return status.st_size

    def pieces(self) -> Iterator[bytes]:
        """The pieces of its content."""
        if isinstance(self.content, bytes):
            yield from (self.content[at : at + PIECE] for at in range(0, len(self.content), PIECE))
            return
        try:
            with self.content.open("rb") as opened:
                while piece := opened.read(PIECE):
                    yield piece
        except OSError as error:
            raise RequestError(f"{self.content} cannot be read: {error}") from error


class Multipart:
    """Fields and files as `multipart/form-data`. Its length is known before it is sent."""

    def __init__(
        self, files: Sequence[File], fields: Sequence[tuple[str, str]] = (), *, progress: Progress | None = None
    ) -> None:
        self._boundary = secrets.token_hex(16)
        self._fields = b"".join(self._head(f'name="{name}"') + value.encode() + b"\r\n" for name, value in fields)
        self._files = [
            (self._head(f'name="files"; filename="{_quoted(file.name)}"'), file, file.size) for file in files
        ]
        self._end = f"--{self._boundary}--\r\n".encode()
        self.progress = progress
        self.content_type = f"multipart/form-data; boundary={self._boundary}"
        self.length = len(self._fields) + len(self._end) + sum(len(head) + size + 2 for head, _, size in self._files)

    def pieces(self) -> Iterator[bytes]:
        """The pieces of the body from its beginning, as often as they are asked for."""
        if self._fields:
            yield self._fields
        for head, file, size in self._files:
            yield head
            sent = 0
            for piece in file.pieces():
                sent += len(piece)
                if sent > size:
                    break
                yield piece
            if sent != size:
                raise RequestError(f"{file.name} changed while it was sent: send it again")
            yield b"\r\n"
        yield self._end

    def _head(self, disposition: str) -> bytes:
        return f"--{self._boundary}\r\nContent-Disposition: form-data; {disposition}\r\n\r\n".encode()


def _quoted(name: str) -> str:
    """The name as headers quote it: what ends a quoted string is escaped. Line ends and their like are refused."""
    if not name.strip() or _UNSENDABLE.search(name):
        raise RequestError(f"the name {name!r} cannot be sent: give the file another one, as File(path, name)")
    return name.replace("\\", "\\\\").replace('"', '\\"')
