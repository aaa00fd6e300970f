"""The form of a blob, attacked byte by byte: whatever is wrong with it is a `BadBlob` and nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import pytest
import zstandard
from blake3 import blake3

from store import blob as stored
from store.blob import Blob, Frame, Head, StoredShape, Terms, digest, read_head
from store.codec.decode import decode
from store.codec.encode import encode
from store.codec.frame import MAX_FRAME_BYTES
from store.errors import BadBlob, MissReason, RecordError
from store.reader import read
from store.record import LayerKV, Record
from tests.store import samples

TERMS = Terms(0, precomputed=True)


def small(codec: str = "q4") -> Blob:
    """A few hundred bytes in three frames, so that every byte can be spoilt in turn."""
    plain = samples.record(layers=1, tokens=192, heads=1, dim=2)
    blob = encode(plain, samples.key(codec=codec), terms=TERMS)
    return recut(blob, plain) if codec == "q4" else blob


def recut(blob: Blob, plain: Record) -> Blob:
    """The same record in three frames of 64 tokens each."""
    (layer,) = plain.layers
    assert layer is not None
    frames: list[bytes] = []
    rows: list[Frame] = []
    for start in range(0, 192, 64):
        part = LayerKV(layer.keys[:, start : start + 64], layer.values[:, start : start + 64])
        (data,) = encode(Record(plain.dtype, (part,)), blob.head.key, terms=TERMS).frames
        frames.append(bytes(data))
        rows.append(Frame(0, 1, start, 64, len(data), digest(data)))
    return assemble(msgspec.structs.replace(blob.head, frames=tuple(rows)), frames)


def assemble(head: Head, frames: Sequence[bytes]) -> Blob:
    return Blob(head, stored.write_head(head), tuple(frames))


def sealed(body: bytes, version: int = stored.FORMAT) -> bytes:
    """Any bytes as a head under a valid digest."""
    front = b"KVWB" + version.to_bytes(2, "little") + bytes(2) + len(body).to_bytes(4, "little")
    return front + blake3(front + body).digest(stored.DIGEST_BYTES) + body


def refused(data: bytes) -> BadBlob:
    with pytest.raises(BadBlob) as raised:
        Blob.parse(data)
    return raised.value


def test_a_blob_is_read_back() -> None:
    for codec in ("q4", "lossless"):
        blob = small(codec)
        data = bytes(blob)
        parsed = Blob.parse(data)
        assert parsed.head == blob.head
        assert bytes(parsed) == data
        assert len(data) == blob.nbytes == parsed.nbytes


def test_the_sample_cut_by_hand_decodes_as_what_it_was_cut_from() -> None:
    plain = samples.record(layers=1, tokens=192, heads=1, dim=2)
    (cut,), (whole,) = decode(read(small())).layers, decode(read(encode(plain, samples.key(), terms=TERMS))).layers
    assert len(small().frames) == 3
    assert cut is not None and whole is not None
    assert cut.keys.tobytes() == whole.keys.tobytes()


@pytest.mark.parametrize("codec", ["q4", "lossless"])
def test_every_flipped_bit_is_found(codec: str) -> None:
    data = bytes(small(codec))
    for place in range(len(data)):
        for bit in range(8):
            refused(data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :])


def test_a_flipped_byte_in_a_frame_spoils_that_frame_alone() -> None:
    blob = small()
    for number, frame in enumerate(blob.frames):
        for place in range(len(frame)):
            bad = bytearray(frame)
            bad[place] ^= 0x80
            frames = [bytes(bad) if n == number else f for n, f in enumerate(blob.frames)]
            reader = read(Blob(blob.head, blob.head_bytes, frames))
            for asked in range(len(frames)):
                if asked == number:
                    with pytest.raises(BadBlob, match=f"frame {number}"), reader.frame(asked):
                        pass
                else:
                    with reader.frame(asked) as data:
                        assert data == blob.frames[asked]


@pytest.mark.parametrize("codec", ["q4", "lossless"])
def test_every_shorter_and_longer_blob_is_refused(codec: str) -> None:
    data = bytes(small(codec))
    for length in range(len(data)):
        refused(data[:length])
    for more in (b"\0", b"KVWB", data):
        refused(data + more)


def test_frames_that_changed_places_are_found() -> None:
    blob = small()
    for one, other in ((0, 1), (1, 2), (0, 2)):
        frames = list(blob.frames)
        frames[one], frames[other] = frames[other], frames[one]
        reader = read(Blob(blob.head, blob.head_bytes, frames))
        with pytest.raises(BadBlob, match="digest"):
            decode(reader)
        refused(bytes(Blob(blob.head, blob.head_bytes, frames)))


@pytest.mark.parametrize("version", [stored.FORMAT + 1, stored.FORMAT + 255, 65535])
def test_a_newer_format_is_told_apart_from_a_broken_blob(version: int) -> None:
    data = bytes(small())
    newer = data[:4] + version.to_bytes(2, "little") + data[6:]
    assert refused(newer).reason is MissReason.NEWER_FORMAT
    assert refused(sealed(b"of a form that nobody knows yet", version)).reason is MissReason.NEWER_FORMAT
    assert refused(b"KVWC" + newer[4:]).reason is MissReason.CORRUPT


def test_a_head_that_claims_too_much_is_refused_before_it_is_read() -> None:
    for length in (stored.MAX_HEAD_BYTES + 1, 2**31, 2**32 - 1):
        start = b"KVWB" + stored.FORMAT.to_bytes(2, "little") + bytes(2) + length.to_bytes(4, "little") + bytes(16)
        with pytest.raises(BadBlob, match=str(stored.MAX_HEAD_BYTES)):
            stored.head_bytes(start)


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x90", b"\xc0", b"\xdd\xff\xff\xff\xff", b"\x91" * 100_000])
def test_a_sealed_head_that_is_no_head_is_refused(body: bytes) -> None:
    assert refused(sealed(body)).reason is MissReason.CORRUPT


def test_a_sealed_head_with_a_bottomless_extra_field_is_refused() -> None:
    body = b"\x9a" + msgspec.msgpack.encode(small().head)[1:] + b"\x91" * 1_000_000 + b"\x90"
    assert refused(sealed(body)).reason is MissReason.CORRUPT


SHAPE = StoredShape(1, 2, 1, 2)
FAR = 2**63
MANY = stored.MAX_ROWS // 8


@dataclass(frozen=True, slots=True)
class Layout:
    """Shapes and, for every frame, its layer, layers, start and tokens."""

    tokens: int
    shapes: tuple[StoredShape | None, ...]
    frames: tuple[tuple[int, int, int, int], ...]


def with_layout(layout: Layout, nbytes: int = 0) -> bytes:
    rows = tuple(Frame(*row, nbytes, digest(b"")) for row in layout.frames)
    return stored.write_head(
        msgspec.structs.replace(small().head, tokens=layout.tokens, shapes=layout.shapes, frames=rows)
    )  # fmt: skip


@pytest.mark.parametrize(
    "layout",
    [
        Layout(9, (SHAPE,), ((0, 1, 0, 9),)),
        Layout(9, (SHAPE,), ((0, 1, 0, 4), (0, 1, 4, 5))),
        Layout(9, (None, SHAPE, None), ((0, 3, 0, 9),)),
        Layout(9, (SHAPE, SHAPE), ((0, 1, 0, 4), (0, 1, 4, 5), (1, 1, 0, 9))),
    ],
)
def test_frames_that_cover_the_record_once_and_in_order_are_a_table(layout: Layout) -> None:
    assert read_head(with_layout(layout)).tokens == layout.tokens


BROKEN = {
    "no frame": Layout(9, (SHAPE,), ()),
    "no layer": Layout(9, (), ()),
    "no layer with a cache": Layout(9, (None,), ((0, 1, 0, 9),)),
    "no token": Layout(0, (SHAPE,), ()),
    "minus one token": Layout(-1, (SHAPE,), ((0, 1, 0, -1),)),
    "no head": Layout(9, (StoredShape(0, 2, 1, 2),), ((0, 1, 0, 9),)),
    "minus one dim": Layout(9, (StoredShape(1, 2, 1, -1),), ((0, 1, 0, 9),)),
    "an empty frame": Layout(9, (SHAPE,), ((0, 1, 0, 0), (0, 1, 0, 9))),
    "a frame of no layers": Layout(9, (SHAPE,), ((0, 0, 0, 9), (0, 1, 0, 9))),
    "a frame of minus one layers": Layout(9, (SHAPE,), ((0, 1, 0, 9), (1, -1, 0, 9), (0, 1, 0, 9))),
    "an end missing": Layout(9, (SHAPE,), ((0, 1, 0, 8),)),
    "a start missing": Layout(9, (SHAPE,), ((0, 1, 1, 8),)),
    "a gap": Layout(9, (SHAPE,), ((0, 1, 0, 4), (0, 1, 5, 4))),
    "an overlap": Layout(9, (SHAPE,), ((0, 1, 0, 5), (0, 1, 4, 5))),
    "too many tokens": Layout(9, (SHAPE,), ((0, 1, 0, 10),)),
    "twice": Layout(9, (SHAPE,), ((0, 1, 0, 9), (0, 1, 0, 9))),
    "tokens out of order": Layout(9, (SHAPE,), ((0, 1, 4, 5), (0, 1, 0, 4))),
    "layers out of order": Layout(9, (SHAPE, SHAPE), ((1, 1, 0, 9), (0, 1, 0, 9))),
    "layers between others": Layout(9, (SHAPE, SHAPE), ((0, 1, 0, 4), (1, 1, 0, 9), (0, 1, 4, 5))),
    "a layer missing": Layout(9, (SHAPE, SHAPE), ((0, 1, 0, 9),)),
    "a layer too many": Layout(9, (SHAPE,), ((0, 2, 0, 9),)),
    "a layer before the first": Layout(9, (SHAPE,), ((-1, 2, 0, 9),)),
    "layers cut apart in the middle": Layout(9, (SHAPE, SHAPE), ((0, 2, 0, 4), (0, 1, 4, 5), (1, 1, 4, 5))),
    "an empty layer left out": Layout(9, (SHAPE, None), ((0, 1, 0, 9),)),
    "numbers without end": Layout(FAR, (SHAPE,), ((0, 1, 0, FAR - 1),)),
    "more rows than a reader walks": Layout(9, (SHAPE, *[None] * MANY), tuple((0, 1 + MANY, t, 1) for t in range(9))),
}  # fmt: skip


@pytest.mark.parametrize("layout", BROKEN.values(), ids=BROKEN)
def test_frames_that_do_not_cover_the_record_are_refused(layout: Layout) -> None:
    with pytest.raises(BadBlob) as raised:
        read_head(with_layout(layout))
    assert raised.value.reason is MissReason.CORRUPT


def test_a_frame_of_negative_length_is_refused() -> None:
    with pytest.raises(BadBlob, match="covers nothing"):
        read_head(with_layout(Layout(9, (SHAPE,), ((0, 1, 0, 9),)), nbytes=-1))


def one_frame(data: bytes, codec: str = "q4", *, tokens: int = 64, shape: StoredShape = SHAPE) -> Blob:
    """A blob whose only frame is any bytes, every digest valid."""
    key = samples.key(codec=codec)
    row = Frame(0, 1, 0, tokens, len(data), digest(data))
    head = Head(
        key.tenant, key.chunk, key.fingerprint, codec, TERMS, "bfloat16", tokens, (shape,), (row,), stored.FORMAT
    )
    return Blob.parse(bytes(assemble(head, [data])))


def unreadable(blob: Blob) -> BadBlob:
    with pytest.raises(BadBlob) as plain:
        decode(read(blob))
    if blob.head.codec != "lossless":
        with pytest.raises(BadBlob):
            samples.rows_of(read(blob))
    return plain.value


NEEDED = 6 * 2 + 2 * 32 + 2 * 64 + 2 * 32  # what 64 tokens of SHAPE take in q4
ZSTD = zstandard.ZstdCompressor()


def lying(told: int, data: bytes) -> bytes:
    """A zstd frame that promises another length than it has: 8 bytes of content size, one raw block."""
    block = (len(data) << 3 | 1).to_bytes(3, "little") + data
    return b"\x28\xb5\x2f\xfd\xe0" + told.to_bytes(8, "little") + block


def test_the_crafted_frames_are_refused_for_their_lies_alone() -> None:
    honest = one_frame(lying(NEEDED, bytes(NEEDED)))
    assert decode(read(honest)).tokens == 64
    assert decode(read(one_frame(ZSTD.compress(bytes(NEEDED))))).tokens == 64


FRAMES = {
    "nothing": b"",
    "one byte": b"\x28",
    "a magic alone": b"\x28\xb5\x2f\xfd",
    "no zstd": b"\0" * 50,
    "a byte too few": ZSTD.compress(bytes(NEEDED - 1)),
    "a byte too many": ZSTD.compress(bytes(NEEDED + 1)),
    "an end missing": ZSTD.compress(np.random.default_rng(0).bytes(NEEDED))[:-1],
    "a bomb that says so": ZSTD.compress(bytes(64 << 20)),
    "a bomb that says nothing": zstandard.ZstdCompressor(write_content_size=False).compress(bytes(64 << 20)),
    "more than promised": lying(NEEDED, bytes(NEEDED + 1)),
    "less than promised": lying(NEEDED, bytes(NEEDED - 1)),
    "a promise without end": lying(2**64 - 1, bytes(NEEDED)),
    "a promise of 2**63": lying(2**63, bytes(NEEDED)),
    "a skippable frame": b"\x50\x2a\x4d\x18" + NEEDED.to_bytes(4, "little") + bytes(NEEDED),
    "run of one byte beyond the promise": b"\x28\xb5\x2f\xfd\xe0" + NEEDED.to_bytes(8, "little") + b"\xfb\xff\x0f\0",
    "a dictionary that is not here": b"\x28\xb5\x2f\xfd\xe3" + b"\1\0\0\0" + NEEDED.to_bytes(8, "little") + b"\1\0\0",
    "a window of terabytes": b"\x28\xb5\x2f\xfd\xc0\xff" + NEEDED.to_bytes(8, "little") + b"\1\0\0",
}


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
def test_a_frame_that_does_not_unpack_to_its_shapes_is_refused(frame: bytes) -> None:
    assert unreadable(one_frame(frame)).reason is MissReason.CORRUPT


@pytest.mark.parametrize("codec", ["q2", "q8", "lossless"])
@pytest.mark.parametrize(
    ("tokens", "shape"),
    [
        (2**40, SHAPE),
        (2**63, SHAPE),
        (1, StoredShape(2**31, 2**31, 1, 1)),
        (64, StoredShape(1, 1, 2**62, 2**62)),
        (MAX_FRAME_BYTES, StoredShape(1, 4, 1, 4)),
    ],
)
def test_a_head_that_claims_a_huge_record_is_refused(tokens: int, shape: StoredShape, codec: str) -> None:
    blob = one_frame(lying(min(tokens, 2**64 - 1), b""), codec, tokens=tokens, shape=shape)
    assert "more than" in str(unreadable(blob))


@pytest.mark.parametrize(
    "codec", ["q1", "q9", "Q4", "lossless2", "q4@", "q4@" + "0" * 32, "lossless@" + "0" * 32, "turbo"]
)
def test_a_codec_that_is_not_known_yet_is_a_newer_format(codec: str) -> None:
    blob = small()
    head = msgspec.structs.replace(blob.head, codec=codec)
    assert unreadable(assemble(head, [bytes(frame) for frame in blob.frames])).reason is MissReason.NEWER_FORMAT


def test_a_head_too_large_to_be_read_is_not_written() -> None:
    head = msgspec.structs.replace(small().head, shapes=(None,) * (stored.MAX_HEAD_BYTES + 1))
    with pytest.raises(RecordError, match=str(stored.MAX_HEAD_BYTES)):
        stored.write_head(head)
