"""Bytes become text: byte order mark, declared character set, UTF-8 or a confident guess; refuses binary files."""

import codecs

from charset_normalizer import from_bytes

from retriever.readers.reading import UnreadableFile

_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_SAMPLE_BYTES = 1 << 16  # bytes that a guess reads
_MAX_CHAOS, _MIN_COHERENCE = 0.15, 0.15  # of a guess that is trusted: little mess, and a language is recognised

# Codecs by Python's names. A label may name no other: some are no character sets, and punycode takes quadratic time.
_CODECS = {
    *("utf-8", "cp866", "cp874", "cp932", "cp949", "koi8-r", "koi8-u", "mac-roman"),
    *("euc_jp", "iso2022_jp", "gb18030", "big5hkscs"),
    *(f"cp{number}" for number in range(1250, 1259)),
    *(f"iso8859-{number}" for number in range(2, 17)),
}
# As browsers do: pages that declare the left mean the right.
_TAKEN_FOR = {
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "iso8859-9": "cp1254",
    "shift_jis": "cp932",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "big5": "big5hkscs",
    "euc_kr": "cp949",
}
_GUESSED = ["cp1252", "cp1250", "cp1251", "cp1253", "cp1254", "koi8_r", "cp932", "euc_jp", "gb18030", "big5", "cp949"]


def decode(content: bytes, *, declared: str = "") -> str:
    """The text without its byte order mark. `declared`: the character set that the file itself names."""
    for mark, codec in _MARKS:
        if content.startswith(mark):
            return _decode_marked(content[len(mark) :], codec=codec, offset=len(mark))
    _refuse_binary(content)
    codec = _codec(declared)
    if codec == "iso2022_jp":  # seven bits wide, so UTF-8 would always fit
        return _try(content, codec) or decode(content)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        text = (_try(content, codec) if codec else "") or _guess(content, error.start)
        if not text:
            raise _unknown(content[error.start], error.start) from None
        return text


def as_utf8(content: bytes, charset: str) -> bytes:
    """The content in UTF-8, where it is in the character set that its sender names; else as it is."""
    codec, is_marked = _codec(charset), content.startswith(tuple(mark for mark, _ in _MARKS))
    if not codec or is_marked or (codec != "iso2022_jp" and _try(content, "utf-8")):
        return content
    return _try(content, codec).encode("utf-8") or content


def _decode_marked(content: bytes, *, codec: str, offset: int) -> str:
    try:
        return content.decode(codec)
    except UnicodeDecodeError as error:
        raise UnreadableFile(
            f"the file is marked as {codec.upper()} but breaks at byte {offset + error.start} ({error.reason}): "
            "save it as UTF-8 again"
        ) from None


def _refuse_binary(content: bytes) -> None:
    at = content.find(b"\0")
    if at >= 0:
        raise UnreadableFile(
            f"the file has a NUL byte at offset {at}, so it is no text, or UTF-16 without a mark: save it as UTF-8"
        )


def _codec(label: str) -> str:
    """Python's name of a character set, or nothing where it is none that files are written in."""
    try:
        name = codecs.lookup(label).name
    except (LookupError, ValueError):
        return ""
    name = _TAKEN_FOR.get(name, name)
    return name if name in _CODECS else ""


def _try(content: bytes, codec: str) -> str:
    try:
        return content.decode(codec)
    except UnicodeDecodeError:
        return ""


def _guess(content: bytes, start: int) -> str:
    """The text by a guessed character set; nothing where the guess is not sure. `start` is where UTF-8 breaks.

    Good UTF-8 before it means damaged UTF-8: any other reading of the file would garble what is sound.
    """
    if not content[:start].isascii():
        return ""
    sample = content[max(0, start - 2048) : start + _SAMPLE_BYTES]
    if start + _SAMPLE_BYTES < len(content):  # not in the middle of a character
        sample = sample[: max(sample.rfind(b" "), sample.rfind(b"\n"), 0)]
    matches = list(from_bytes(sample, cp_isolation=_GUESSED, enable_fallback=False))
    if not matches:
        return ""
    # Western European pages outnumber those that look like it: it wins a tie.
    best = next((each for each in matches if each.encoding == "cp1252"), matches[0])
    best = best if best.coherence >= matches[0].coherence else matches[0]
    sure = best.chaos <= _MAX_CHAOS and best.coherence >= _MIN_COHERENCE
    return _try(content, best.encoding) if sure else ""


def _unknown(byte: int, offset: int) -> UnreadableFile:
    return UnreadableFile(
        f"the file is not UTF-8 (byte 0x{byte:02x} at offset {offset}), and what else it is cannot be told: "
        "save it as UTF-8"
    )
