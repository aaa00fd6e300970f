"""The format of a blob: preamble, head, frames, their digests, and when one is corrupt or of a newer format.

    preamble   magic 4s | format version u16 | zero u16 | head length u32 | blake3 of all that and of the head 16s
    head       msgpack of `Head`: whose blob it is, its shapes, the frame table with a digest for every frame
    frames     one after the other, each a zstd frame of the layout that `store.codec.frame` describes

Nothing is allocated on the word of an unverified byte: a head is at most `MAX_HEAD_BYTES` long.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import msgspec
from blake3 import blake3

from store.errors import BadBlob, KeyFormatError, MissReason, RecordError
from store.key import CacheKey
from store.record import Dtype

MAGIC = b"KVWB"
FORMAT = 3  # of blobs with codes of a trellis
PLAIN_FORMAT = 2  # of all others, which earlier releases read as well
MAX_HEAD_BYTES = 4 << 20
MAX_ROWS = 1 << 20  # layers, counted once for every frame that names them: bounds a reader's work
DIGEST_BYTES = 16

Buffer = bytes | memoryview

_PREAMBLE = struct.Struct("<4sHHI16s")
PREAMBLE_BYTES = _PREAMBLE.size
_DIGESTED = PREAMBLE_BYTES - DIGEST_BYTES


class StoredShape(msgspec.Struct, frozen=True, array_like=True):
    """Heads and dims of one layer's keys and values."""

    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """One row of the frame table: tokens `start` to `start + tokens` of layers `layer` to `layer + layers`."""

    layer: int
    layers: int
    start: int
    tokens: int
    nbytes: int
    digest: bytes
    level: int = 0  # of refinement: a base alone so far


class Terms(msgspec.Struct, frozen=True, array_like=True):
    """The terms on which a blob is kept.

    `epoch` is the tenant's delete epoch when the computing began: a later delete kills the blob, wherever it is copied.
    A precomputed blob was stored by a job; any other is a fill at query time and may be evicted.
    """

    epoch: int
    precomputed: bool

    def __post_init__(self) -> None:
        if self.epoch < 0:
            raise RecordError(f"terms need an epoch of 0 or more, got {self}")


class Head(msgspec.Struct, frozen=True, array_like=True):
    """A blob's description of itself, under its own digest. Heads of format 1 end with the frames.

    `ids_digest` is of the chunk's token ids, `scores` may hold a byte for each token; either may be empty. The last
    `tail_tokens` follow the chunk; earlier releases do not know these: they find more tokens than the chunk has.
    """

    tenant: str
    chunk: str
    fingerprint: str
    codec: str
    terms: Terms
    dtype: Dtype
    tokens: int
    shapes: tuple[StoredShape | None, ...]
    frames: tuple[Frame, ...]
    format: int = 1
    ids_digest: str = ""
    scores: bytes = b""
    tail_tokens: int = 0
    tail_digest: str = ""

    @property
    def key(self) -> CacheKey:
        """The key that this blob belongs under."""
        return CacheKey(self.tenant, self.chunk, self.fingerprint, self.codec)

    @property
    def groups(self) -> tuple[range, ...]:
        """Frame numbers of each layer group, in layer order; a group can be decoded without the others."""
        layers = [frame.layer for frame in self.frames]
        starts = [number for number, layer in enumerate(layers) if not number or layer != layers[number - 1]]
        return tuple(range(start, stop) for start, stop in pairwise([*starts, len(layers)]))

    @property
    def body_bytes(self) -> int:
        """Length of all frames."""
        return sum(frame.nbytes for frame in self.frames)


def digest(data: Buffer) -> bytes:
    """The digest of a frame, as in the frame table."""
    return blake3(data).digest(DIGEST_BYTES)


def write_head(head: Head) -> bytes:
    """The preamble and the head as bytes."""
    body = msgspec.msgpack.encode(head)
    if len(body) > MAX_HEAD_BYTES:
        raise RecordError(f"a head of {len(body)} bytes is over {MAX_HEAD_BYTES}: the record has too many frames")
    front = _PREAMBLE.pack(MAGIC, head.format, 0, len(body), b"")[:_DIGESTED]
    return front + blake3(front + body).digest(DIGEST_BYTES) + body


def head_bytes(start: Buffer) -> int:
    """Length of preamble and head, read from a blob's first `PREAMBLE_BYTES`."""
    if len(start) < PREAMBLE_BYTES:
        raise BadBlob(MissReason.CORRUPT, f"a blob has at least {PREAMBLE_BYTES} bytes, this has {len(start)}")
    magic, version, _, length, _ = _PREAMBLE.unpack(start[:PREAMBLE_BYTES])
    if magic != MAGIC:
        raise BadBlob(MissReason.CORRUPT, f"a blob begins with {MAGIC!r}, this with {bytes(magic)!r}")
    if version > FORMAT:
        raise BadBlob(
            MissReason.NEWER_FORMAT,
            f"format {version} was written by a newer release; this one reads up to {FORMAT}",
        )
    if length > MAX_HEAD_BYTES:
        raise BadBlob(MissReason.CORRUPT, f"a head of {length} bytes is over {MAX_HEAD_BYTES}")
    return PREAMBLE_BYTES + length


def read_head(start: Buffer) -> Head:
    """The head of a blob whose first bytes these are, verified; raises `BadBlob`."""
    length = head_bytes(start)
    if len(start) < length:
        raise BadBlob(MissReason.CORRUPT, f"the head ends after {len(start)} of {length} bytes")
    view = memoryview(start)
    body = view[PREAMBLE_BYTES:length]
    told = blake3(view[:_DIGESTED])
    told.update(body)
    if told.digest(DIGEST_BYTES) != bytes(view[_DIGESTED:PREAMBLE_BYTES]):
        raise BadBlob(MissReason.CORRUPT, "the head does not match its digest")
    try:
        head = msgspec.msgpack.decode(body, type=Head)
        _check_table(head)
        _check_extras(head, _PREAMBLE.unpack(view[:PREAMBLE_BYTES])[1])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, KeyFormatError) as error:
        raise BadBlob(MissReason.CORRUPT, f"the head does not parse: {error}") from None
    return head


def _check_table(head: Head) -> None:
    """Checks that groups of layers follow each other without a gap, and so do the tokens inside each group."""
    _ = head.key
    if head.tokens < 1 or not any(head.shapes) or any(min(msgspec.structs.astuple(s)) < 1 for s in {*head.shapes} if s):
        raise BadBlob(MissReason.CORRUPT, "a record has at least one token, one layer, one head and one dim")
    start, stop, reached = 0, 0, head.tokens
    for number, frame in enumerate(head.frames):
        if frame.layers < 1 or frame.tokens < 1 or frame.nbytes < 0:
            raise BadBlob(MissReason.CORRUPT, f"frame {number} covers nothing")
        if reached == head.tokens:
            start, stop, reached = stop, stop + frame.layers, 0
        if (frame.layer, frame.layer + frame.layers, frame.start) != (start, stop, reached):
            raise BadBlob(MissReason.CORRUPT, f"frame {number} does not go on where the one before it stopped")
        reached += frame.tokens
    if stop != len(head.shapes) or reached != head.tokens:
        raise BadBlob(MissReason.CORRUPT, "the frames do not cover the record")
    if sum(frame.layers for frame in head.frames) > MAX_ROWS:
        raise BadBlob(MissReason.CORRUPT, f"the frames name more than {MAX_ROWS} layers between them")


def _check_extras(head: Head, version: int) -> None:
    """Checks the fields that format 2 added."""
    if head.format != version or version < 1:
        raise BadBlob(MissReason.CORRUPT, f"a head of format {head.format} behind a preamble of format {version}")
    if not 0 <= head.tail_tokens < head.tokens:
        raise BadBlob(MissReason.CORRUPT, f"a tail of {head.tail_tokens} tokens in a record of {head.tokens}")
    if len(head.scores) not in (0, head.tokens):
        raise BadBlob(MissReason.CORRUPT, f"{len(head.scores)} scores for {head.tokens} tokens")
    if any(frame.level for frame in head.frames):
        raise BadBlob(MissReason.NEWER_FORMAT, "the blob has levels, which this release does not read")


@dataclass(frozen=True, slots=True)
class Blob:
    """A whole blob in memory: the head as parsed and as bytes, and the frames."""

    head: Head
    head_bytes: bytes
    frames: Sequence[Buffer]

    @property
    def nbytes(self) -> int:
        """Length of the blob as one piece."""
        return len(self.head_bytes) + self.head.body_bytes

    def __bytes__(self) -> bytes:
        return b"".join((self.head_bytes, *self.frames))

    @classmethod
    def parse(cls, data: Buffer) -> Self:
        """Read a blob from one piece of memory, every digest verified; raises `BadBlob`."""
        head = read_head(data)
        start = head_bytes(data)
        if len(data) != start + head.body_bytes:
            raise BadBlob(MissReason.CORRUPT, f"{len(data)} bytes where the head promises {start + head.body_bytes}")
        view = memoryview(data)
        frames: list[Buffer] = []
        position = start
        for number, frame in enumerate(head.frames):
            frames.append(verified(view[position : position + frame.nbytes], head, number=number))
            position += frame.nbytes
        return cls(head, bytes(view[:start]), tuple(frames))


def verified(data: Buffer, head: Head, *, number: int) -> Buffer:
    """The frame's bytes, if they match the frame table; raises `BadBlob` otherwise."""
    frame = head.frames[number]
    if len(data) != frame.nbytes or digest(data) != frame.digest:
        raise BadBlob(MissReason.CORRUPT, f"frame {number} of {head.key.text} does not match its digest")
    return data
