"""The decoder against bytes that no encoder wrote. It answers with `BadBlob` or with a record, and with nothing else.

Two enemies: rot, which knows no digests, and a writer who makes all of them valid. Every run draws the same cases.
"""

import random
import tracemalloc
from collections.abc import Callable

import msgspec
import pytest
import zstandard

from store.blob import FORMAT, MAX_HEAD_BYTES, Blob, Frame, Head, StoredShape, digest, read_head, write_head
from store.codec.decode import decode
from store.codec.encode import encode
from store.codec.frame import MAX_FRAME_BYTES
from store.errors import BadBlob
from store.reader import read
from store.record import Record
from store.rows import TOKENS
from tests.store import samples
from tests.store.golden.make import FOLDER
from tests.store.test_blob import TERMS, one_frame, sealed, small

Case = Callable[[random.Random], bytes]

EXTREMES = (
    0,
    1,
    2,
    3,
    63,
    64,
    127,
    128,
    255,
    2**15,
    2**16,
    2**24,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**40,
    2**63,
    2**64 - 1,
)
ZSTD = zstandard.ZstdCompressor()


def sources() -> tuple[Blob, ...]:
    """Every way in which a blob can look: layers left out, several frames, several spans, lossless or not, older."""
    tiny = samples.record(layers=3, tokens=5, heads=1, dim=2)
    spans = samples.record(1, layers=1, tokens=130, heads=2, dim=3, dtype="float16")
    packed = [
        encode(plain, samples.key(codec=spec), terms=TERMS)
        for plain in (tiny, spans)
        for spec in ("q2", "q2.3", "q4", "k7v3", "lossless@1-q4")
    ]
    plain = [encode(tiny, samples.key(codec="lossless"), terms=TERMS), small(), small("lossless")]
    older = [Blob.parse((FOLDER / f"v1-{name}.blob").read_bytes()) for name in ("q2", "q4", "three-frames")]
    return (*packed, *plain, *older)


SOURCES = sources()
ORIGINALS = tuple(bytes(blob) for blob in SOURCES)


def survives(data: bytes) -> Record | None:
    """What a reader makes of these bytes; None where it refuses them. Any other exception is what we look for."""
    try:
        blob = Blob.parse(data)
        plain = decode(read(blob))
        if blob.head.codec != "lossless":
            rows = samples.rows_of(read(blob)).rows
            kept = [shape is not None for shape in blob.head.shapes]
            assert (rows[kept][:, :, TOKENS].sum(1) == plain.tokens).all()
    except BadBlob:
        return None
    assert (plain.tokens, plain.dtype, len(plain.layers)) == (blob.head.tokens, blob.head.dtype, len(blob.head.shapes))
    return plain


def noise(draw: random.Random) -> bytes:
    return draw.randbytes(draw.randrange(300))


def noise_behind_the_magic(draw: random.Random) -> bytes:
    version = draw.choice((FORMAT, FORMAT, 0, 2, 65535)).to_bytes(2, "little")
    return b"KVWB" + version + bytes(2) + draw.choice(EXTREMES[:14]).to_bytes(4, "little") + noise(draw)


def flipped(draw: random.Random) -> bytes:
    return spoil(draw.choice(ORIGINALS), draw)


def spoil(data: bytes, draw: random.Random) -> bytes:
    """One to four bytes changed."""
    spoilt = bytearray(data)
    for _ in range(draw.randint(1, 4) if data else 0):
        spoilt[draw.randrange(len(spoilt))] ^= draw.randint(1, 255)
    return bytes(spoilt)


def spliced(draw: random.Random) -> bytes:
    one, other = draw.choice(ORIGINALS), draw.choice(ORIGINALS)
    return one[: draw.randrange(len(one) + 1)] + other[draw.randrange(len(other) + 1) :]


def with_a_length(data: bytes, draw: random.Random) -> bytes:
    """A number of an awkward size written over some bytes, or pushed between them."""
    width = draw.choice((1, 2, 4, 8))
    number = (draw.choice(EXTREMES) % 256**width).to_bytes(width, draw.choice(("little", "big")))
    place = draw.randrange(len(data) + 1)
    return data[:place] + number + data[place + draw.choice((0, width)) :]


def lengthened(draw: random.Random) -> bytes:
    return with_a_length(draw.choice(ORIGINALS), draw)


ROT: tuple[Case, ...] = (noise, noise_behind_the_magic, flipped, spliced, lengthened)


def head_under_a_new_digest(draw: random.Random) -> bytes:
    """Bytes of the head changed, sealed again."""
    blob = draw.choice(SOURCES)
    body = msgspec.msgpack.encode(blob.head)
    return sealed(draw.choice((spoil, with_a_length))(body, draw)) + b"".join(blob.frames)


def frames_under_new_digests(draw: random.Random) -> bytes:
    """Frames changed before or behind zstd, the frame table made to fit."""
    blob = draw.choice(SOURCES)
    changed = draw.choice((spoil, with_a_length))
    if draw.random() < 0.5:
        frames = [changed(bytes(frame), draw) for frame in blob.frames]
    else:
        unzip = zstandard.ZstdDecompressor()
        frames = [ZSTD.compress(changed(unzip.decompress(frame), draw)) for frame in blob.frames]
    return resealed(blob.head, frames)


def resealed(head: Head, frames: list[bytes]) -> bytes:
    rows = tuple(
        msgspec.structs.replace(row, nbytes=len(data), digest=digest(data))
        for row, data in zip(head.frames, frames, strict=True)
    )
    return write_head(msgspec.structs.replace(head, frames=rows)) + b"".join(frames)


def fields_under_a_new_digest(draw: random.Random) -> bytes:
    """Fields of the head set to awkward values of their own type, one to three of them."""
    blob = draw.choice(SOURCES)
    head = blob.head
    for _ in range(draw.randint(1, 3)):
        head = draw.choice(FIELDS)(head, draw)
    return write_head(head) + b"".join(blob.frames)


def number(draw: random.Random, near: int) -> int:
    """What msgpack can carry."""
    chosen = draw.choice((draw.choice(EXTREMES), near + 1, near - 1, near * 2, -near, -1))
    return min(2**64 - 1, max(-(2**63), chosen))


def other_tokens(head: Head, draw: random.Random) -> Head:
    return msgspec.structs.replace(head, tokens=number(draw, head.tokens))


def more_tokens_everywhere(head: Head, draw: random.Random) -> Head:
    """The last frame takes what the head claims: the table stays whole."""
    tokens = min(2**63, abs(number(draw, head.tokens)))
    if not head.frames:
        return head
    last = head.frames[-1]
    rows = (*head.frames[:-1], msgspec.structs.replace(last, tokens=max(1, tokens - last.start)))
    return msgspec.structs.replace(head, tokens=tokens, frames=rows)


def other_shape(head: Head, draw: random.Random) -> Head:
    place = draw.randrange(len(head.shapes) + 1)
    numbers = [draw.choice((1, 2, 3, number(draw, 2))) for _ in range(4)]
    shape = draw.choice((None, StoredShape(*numbers)))
    shapes = list(head.shapes)
    shapes[place : place + draw.choice((0, 1))] = [shape]
    return msgspec.structs.replace(head, shapes=tuple(shapes))


def other_row(head: Head, draw: random.Random) -> Head:
    rows = list(head.frames)
    if not rows:
        return head
    place = draw.randrange(len(rows))
    name = draw.choice(("layer", "layers", "start", "tokens", "nbytes"))
    rows[place] = msgspec.structs.replace(rows[place], **{name: number(draw, getattr(rows[place], name))})
    return msgspec.structs.replace(head, frames=tuple(rows))


def shuffled_rows(head: Head, draw: random.Random) -> Head:
    rows: list[Frame] = draw.choices(head.frames, k=draw.randrange(len(head.frames) + 2)) if head.frames else []
    return msgspec.structs.replace(head, frames=tuple(rows))


def other_codec(head: Head, draw: random.Random) -> Head:
    codec = draw.choice(
        (
            "lossless",
            "q2",
            "q3",
            "q4",
            "q5",
            "q8",
            "q9",
            "",
            "q4@" + "0" * 32,
            "q4@",
            "Q4",
            "\0",
            "k4v2",
            "q2@1-q8",
            "q2.3",
        )
    )
    return msgspec.structs.replace(head, codec=codec)


def other_dtype(head: Head, draw: random.Random) -> Head:
    return msgspec.structs.replace(head, dtype=draw.choice(("float32", "float16", "bfloat16", "float64", "")))


def other_name(head: Head, draw: random.Random) -> Head:
    field = draw.choice(("tenant", "chunk", "fingerprint"))
    return msgspec.structs.replace(head, **{field: draw.choice(("", "..", "/", "é\0", "x" * 481))})


def other_extras(head: Head, draw: random.Random) -> Head:
    rows = [msgspec.structs.replace(row, level=number(draw, 0)) for row in head.frames]
    changed = {
        "format": draw.choice((0, 1, 2, 3, 65535)),
        "scores": bytes(draw.choice((1, 5, 130))),
        "frames": tuple(rows),
    }
    name = draw.choice(list(changed))
    return msgspec.structs.replace(head, **{name: changed[name]})


FIELDS = (
    other_extras,
    other_tokens, more_tokens_everywhere, other_shape, other_row, shuffled_rows, other_codec, other_dtype, other_name
)  # fmt: skip
SEALED: tuple[Case, ...] = (head_under_a_new_digest, frames_under_new_digests, fields_under_a_new_digest)


def cases_of_rot(seed: int, count: int) -> None:
    draw = random.Random(seed)
    for _ in range(count):
        data = draw.choice(ROT)(draw)
        assert survives(data) is None or data in ORIGINALS, data


def sealed_cases(seed: int, count: int) -> int:
    """How many of them a reader takes for a blob."""
    draw = random.Random(seed)
    return sum(survives(draw.choice(SEALED)(draw)) is not None for _ in range(count))


@pytest.mark.parametrize("seed", range(3))
def test_rot_is_a_bad_blob(seed: int) -> None:
    cases_of_rot(seed, 10_000)


def test_a_writer_of_valid_digests_gets_a_record_or_a_bad_blob() -> None:
    taken = sealed_cases(0, 10_000)
    assert 100 < taken < 9_900  # both answers are common, or the cases are not what they claim


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 130))
def test_a_hundred_thousand_cases(seed: int) -> None:
    cases_of_rot(seed, 70_000)
    sealed_cases(seed, 30_000)


def test_the_originals_survive() -> None:
    assert all(survives(data) is not None for data in ORIGINALS)


def peak_of(work: Callable[[], object]) -> int:
    """Bytes that Python and numpy held at most while this ran, on top of what was there."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("length", [MAX_HEAD_BYTES, MAX_HEAD_BYTES + 1, 2**31, 2**32 - 1])
def test_a_claimed_length_allocates_nothing(length: int) -> None:
    data = b"KVWB" + FORMAT.to_bytes(2, "little") + bytes(2) + length.to_bytes(4, "little") + bytes(500)
    assert peak_of(lambda: survives(data)) < 64 << 10


def test_a_head_under_a_wrong_digest_is_not_even_copied() -> None:
    whole = sealed(b"\xc0" * MAX_HEAD_BYTES)
    wrong = whole[:12] + bytes(16) + whole[28:]
    assert peak_of(lambda: survives(wrong)) < 64 << 10


@pytest.mark.parametrize("field", range(9))
@pytest.mark.parametrize("mark", [b"\xdd", b"\xdb", b"\xc6"])
def test_a_sealed_head_that_claims_four_billion_members_allocates_nothing(mark: bytes, field: int) -> None:
    fields = msgspec.msgpack.decode(msgspec.msgpack.encode(small().head))
    before, after = (b"".join(map(msgspec.msgpack.encode, part)) for part in (fields[:field], fields[field:]))
    body = bytes([0x90 + len(fields)]) + before + mark + b"\xff" * 4 + after[1:]
    assert peak_of(lambda: survives(sealed(body))) < 64 << 10


def test_a_large_sealed_head_takes_memory_in_proportion() -> None:
    head = msgspec.structs.replace(small().head, shapes=(None,) * (MAX_HEAD_BYTES - 1000))
    data = write_head(head)
    assert peak_of(lambda: survives(data)) < 40 * MAX_HEAD_BYTES


@pytest.mark.parametrize("codec", ["q2", "q8", "lossless"])
@pytest.mark.parametrize("tokens", [2**27, 2**32, 2**60])
def test_a_sealed_claim_of_tokens_allocates_nothing(tokens: int, codec: str) -> None:
    blob = one_frame(ZSTD.compress(bytes(100)), codec, tokens=tokens)
    assert peak_of(lambda: survives(bytes(blob))) < 64 << 10


def test_a_bomb_under_valid_digests_unpacks_to_no_more_than_a_frame_may() -> None:
    for size in (MAX_FRAME_BYTES, MAX_FRAME_BYTES + 4096):
        shape = StoredShape(1, 1024, 1, size // 2 - 1024)  # two bytes each, one token
        blob = one_frame(ZSTD.compress(bytes(size)), "lossless", tokens=1, shape=shape)
        with_frame = peak_of(lambda blob=blob: survives(bytes(blob)))
        assert with_frame < (5 * MAX_FRAME_BYTES if size == MAX_FRAME_BYTES else 1 << 20)


def test_no_sealed_case_holds_more_than_a_few_small_frames() -> None:
    draw = random.Random(5)
    cases = [draw.choice(SEALED)(draw) for _ in range(1_000)]
    assert max(peak_of(lambda data=data: survives(data)) for data in cases) < 1 << 20


def test_a_sealed_case_is_read_alike_as_head_and_as_blob() -> None:
    draw = random.Random(6)
    for _ in range(2_000):
        data = fields_under_a_new_digest(draw)
        if survives(data) is not None:
            assert read_head(data) == Blob.parse(data).head
