"""Text to token ids and back: which ids are control tokens; a user's text that would become one is cut, or refused.

It uses two copies of the model's tokenizer. The trusted one is the model's own. The plain one, for users' text,
matches no control token and prepends no space: a piece of a prompt follows other pieces, it does not begin a line.
Nothing is switched between calls, so threads may share a `Tokenizer`.
"""

import codecs
import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TypedDict, cast

from blake3 import blake3
from tokenizers import Encoding
from tokenizers import Tokenizer as Backend
from transformers import GenerationConfig, PreTrainedTokenizerBase

from blend.errors import TokenizerError

Json = dict[str, object]
Stretch = tuple[int, int]  # of a text; the end is exclusive


class _Added(TypedDict):
    """An entry of tokenizer.json's added tokens, with the fields that are read here."""

    id: int
    content: str
    special: bool


_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_MARKER = re.compile(r"<.+>|\[.+\]", re.DOTALL)
_CODE = re.compile(r"\{%.*?%\}|\{\{.*?\}\}|\{#.*?#\}", re.DOTALL)
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)


class Tokenizer:
    """`control` are the ids that only a template may write: special ones, turn markers, `<tool_call>` and the like.

    `special` are those that the model itself declares special, `front` those that it puts before a prompt. `stop_ids`
    end an answer, `digest` changes with anything that decides a text's ids, `source` renders chat templates.
    """

    def __init__(self, source: PreTrainedTokenizerBase, generation: GenerationConfig | None = None) -> None:
        spec = _specification(source)
        template = cast(object, source.chat_template)  # pyright: ignore[reportUnknownMemberType]
        self.source = source
        self.stop_ids = _ids(source.eos_token_id) | _ids(getattr(generation, "eos_token_id", None))
        self._trusted = _load(spec)
        self.front = tuple(_front(source, self._trusted))
        self._added = {token["id"]: token["content"] for token in _added(spec)}
        written = written_text(template)
        self.special = _ids(source.all_special_ids) | {token["id"] for token in _added(spec) if token["special"]}
        spelled = {token for token, name in self._added.items() if _MARKER.fullmatch(name) or name in written}
        stops = {token for token in self.stop_ids if token in self._added or _MARKER.fullmatch(self._piece(token))}
        self.control = frozenset(token for token in self.special | spelled | stops if _separable(self._piece(token)))
        self._plain = _load(_without_prefix(_harmless(spec, self.control)))
        self._plain.encode_special_tokens = True  # "special" here means: never matched in text
        self._literal = self._literals(spec, kept=self.stop_ids | _ids(source.bos_token_id), written=written)
        self._suspects = self.control | frozenset(self._literal)
        self._bytes = _Spelling(self._trusted, spec, control=self.control)
        decisive = (spec, template, sorted(self.control), sorted(self.stop_ids))
        self.digest = blake3(json.dumps(decisive, sort_keys=True).encode()).hexdigest()

    def encode_text(self, text: str, *, opens: bool = False) -> list[int]:
        """The ids of a user's text, with no prefix. None is in `control`, except for characters the model lacks.

        Where a control token would still appear, the text is cut inside its spelling. `opens`: it begins a prompt, with
        what the model's own tokenizer makes of a beginning, such as a space.
        """
        _refuse_surrogates(text)
        ids: list[int] = []
        pending = [(0, len(text))] if text else []
        while pending:
            start, stop = pending.pop()
            backend = self._trusted if opens and start == 0 else self._plain
            [found] = backend.encode_batch_fast([text[start:stop]], add_special_tokens=False)  # frees the GIL
            if self._suspects.isdisjoint(found.ids):
                ids += found.ids
                continue
            encoding = backend.encode(text[start:stop], add_special_tokens=False)  # with offsets
            cuts = {start + cut for cut in self._cuts(text[start:stop], encoding)}
            if not cuts:
                ids += encoding.ids
            else:
                pending += reversed([*pairwise([start, *sorted(cuts), stop])])
        return ids

    def encode_template(self, text: str, foreign: Sequence[Stretch] = ()) -> list[int]:
        """The ids of trusted text that follows other text: control tokens are matched, and nothing is put in front.

        `foreign` are stretches in it that are not trusted, in order: no control token has a letter of them.
        """
        return self._encode_trusted(text, foreign, opens=False)

    def encode_opening(self, text: str, foreign: Sequence[Stretch] = ()) -> list[int]:
        """The ids of trusted text that begins a prompt, exactly as the model's own tokenizer gives them."""
        return self._encode_trusted(text, foreign, opens=True)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of these tokens, control tokens by name; bytes that are no character become U+FFFD."""
        return b"".join(self._bytes.of(token) for token in ids).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        """The UTF-8 that one token adds to a text, possibly part of a character. Empty for an id without a meaning."""
        return self._bytes.of(token)

    def round_trips(self, text: str, ids: Sequence[int]) -> bool:
        """Whether these ids say all of this text."""
        return self.decode(ids) == text

    def _encode_trusted(self, text: str, foreign: Sequence[Stretch], *, opens: bool) -> list[int]:
        """Where a control token would reach into foreign text, that stretch is encoded by itself, as a user's text."""
        _refuse_surrogates(text)
        ids: list[int] = []
        pending: list[tuple[int, int, Sequence[Stretch] | None]] = [(0, len(text), foreign)]  # None: all of it is
        while pending:
            start, stop, inside = pending.pop()
            if inside is None:
                ids += self.encode_text(text[start:stop])
                continue
            found = self._placed(text[start:stop], opens=opens and start == 0)
            cut = self._reached(text, [(token, (start + a, start + b)) for token, (a, b) in found], foreign=inside)
            if not cut:
                ids += [token for token, _ in found]
            else:
                pending += reversed([*_apart((start, stop), inside, cut=cut)])
        return ids

    def _placed(self, text: str, *, opens: bool) -> list[tuple[int, Stretch]]:
        """The ids of trusted text, and where they stand."""
        encoding = self._trusted.encode(text, add_special_tokens=False)
        placed = list(zip(encoding.ids, encoding.offsets, strict=True))
        if opens:
            return placed
        first = next((i for i, token in enumerate(encoding.ids) if token in self._added), len(placed))
        start = placed[first][1][0] if first < len(placed) else len(text)
        if start == 0:
            return placed
        front = self._plain.encode(text[:start], add_special_tokens=False)
        return [*zip(front.ids, front.offsets, strict=True), *placed[first:]]

    def _reached(self, text: str, placed: Sequence[tuple[int, Stretch]], *, foreign: Sequence[Stretch]) -> set[Stretch]:
        """The foreign stretches that have letters of a control token."""
        found: set[Stretch] = set()
        ends = [stop for _, stop in foreign]
        for token, (start, stop) in placed:
            if token not in self._suspects or text[start:stop] != self._literal.get(token, text[start:stop]):
                continue
            for each in foreign[bisect_right(ends, start) :]:
                if each[0] >= stop:
                    break
                found.add(each)
        return found

    def _piece(self, token: int) -> str:
        return self._trusted.id_to_token(token) or ""

    def _literals(self, spec: Json, *, kept: frozenset[int], written: str) -> dict[int, str]:
        """Tokens that a text may contain, but not by spelling their names: single bytes, and the unknown character."""
        names = [f"<0x{byte:02X}>" for byte in range(256)]
        unknown = _unknown(spec)
        if unknown and unknown not in written:
            names.append(unknown)
        found = {self._trusted.token_to_id(name): name for name in names}
        return {token: name for token, name in found.items() if token is not None and token not in kept}

    def _cuts(self, text: str, encoding: Encoding) -> Iterator[int]:
        for token, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True):
            if token not in self._suspects:
                continue
            if token in self._literal and text[start:stop] != self._literal[token]:
                continue
            if stop - start < 2:
                raise TokenizerError(
                    f"the character {text[start:stop]!r} becomes the control token {self._piece(token)!r} "
                    "in this model's tokenizer: remove it from the text"
                )
            yield start + 1


class Detokenizer:
    """The text of one answer. The results of `push` and `finish`, joined, are the text of all ids that are not hidden.

    Each token's bytes are known by themselves, so the work for a token does not grow with the answer.
    """

    def __init__(self, tokenizer: Tokenizer, *, hidden: frozenset[int] | None = None) -> None:
        """Makes the text of one answer. Hides all control tokens, unless `hidden` names others."""
        self._tokenizer = tokenizer
        self._hidden = tokenizer.control if hidden is None else hidden
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The characters that this token completes; they never change again."""
        if token_id in self._hidden:
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def finish(self) -> str:
        """Ends the answer. An incomplete character is dropped; nothing else was held back."""
        self._decoder.reset()
        return ""


class _Spelling:
    """The bytes of every token, each found once."""

    def __init__(self, backend: Backend, spec: Json, *, control: frozenset[int]) -> None:
        self._backend = backend
        self._known = {token: (backend.id_to_token(token) or "").encode() for token in control}
        self._byte_of = _byte_alphabet() if "ByteLevel" in _types(spec["decoder"]) else None
        if self._byte_of is not None:
            vocabulary = backend.get_vocab(with_added_tokens=False)
            outside = (token for token in _added(spec) if token["content"] not in vocabulary)
            self._known |= {token["id"]: token["content"].encode() for token in outside}
        self._anchor = None if self._byte_of is not None else self._find_anchor()

    def of(self, token: int) -> bytes:
        known = self._known.get(token)
        if known is None:
            known = self._known[token] = self._find(token)
        return known

    def _find(self, token: int) -> bytes:
        piece = self._backend.id_to_token(token)
        if piece is None:
            return b""
        if self._byte_of is not None:
            found = [self._byte_of.get(letter) for letter in piece]
            return piece.encode() if None in found else bytes(byte for byte in found if byte is not None)
        text = self._decode(token)
        return bytes([int(piece[3:5], 16)]) if _BYTE.fullmatch(piece) and text != piece else text.encode()

    def _decode(self, token: int) -> str:
        """A token's text after another token, as many decoders drop the space that a text begins with."""
        if self._anchor is None:
            return self._backend.decode([token], skip_special_tokens=False)
        front = self._backend.decode([self._anchor], skip_special_tokens=False)
        return self._backend.decode([self._anchor, token], skip_special_tokens=False).removeprefix(front)

    def _find_anchor(self) -> int | None:
        for token in range(self._backend.get_vocab_size()):
            piece = self._backend.id_to_token(token)
            if token not in self._known and piece and piece.isascii() and piece.isalnum():
                return token
        return None


def _apart(
    whole: Stretch, foreign: Sequence[Stretch], *, cut: set[Stretch]
) -> Iterator[tuple[int, int, Sequence[Stretch] | None]]:
    """A stretch in pieces, those to cut out by themselves; with each other one the foreign stretches that it keeps."""
    begin, kept = whole[0], list[Stretch]()
    for each in foreign:
        if each not in cut:
            kept.append(each)
            continue
        yield begin, each[0], kept
        yield *each, None
        begin, kept = each[1], []
    yield begin, whole[1], kept


def written_text(template: object) -> str:
    """The text that a chat template can write by itself: outside of code, and the strings inside it."""
    if isinstance(template, dict):
        return "\0".join(written_text(each) for each in cast(Json, template).values())
    if not isinstance(template, str):
        return ""
    strings = (quoted[1:-1] for code in _CODE.findall(template) for quoted in _QUOTED.findall(code))
    return "\0".join([*_CODE.split(template), *strings])


def _specification(source: PreTrainedTokenizerBase) -> Json:
    """The part of the tokenizer that decides ids, without padding, truncation, added tokens and randomness."""
    backend = getattr(source, "backend_tokenizer", None)
    if not isinstance(backend, Backend):
        raise TokenizerError(
            f"{type(source).__name__} has no tokenizer.json, by which a text's tokens can be told from control tokens: "
            "convert it to one, and save it in the model's folder"
        )
    spec = cast(Json, json.loads(backend.to_str()))
    model = cast(Json, spec["model"])
    if "dropout" in model:
        model["dropout"] = None
    return {**spec, "truncation": None, "padding": None, "post_processor": None}


def _front(source: PreTrainedTokenizerBase, backend: Backend) -> Iterator[int]:
    """The special tokens that the model's own tokenizer puts in front of any text."""
    processor = cast(Backend, source.backend_tokenizer).post_processor
    found = processor and processor.process(backend.encode("a", add_special_tokens=False))
    if found:
        yield from found.ids[: [*found.special_tokens_mask, 0].index(0)]


def _load(spec: Json) -> Backend:
    return Backend.from_str(json.dumps(spec, ensure_ascii=False))


def _added(spec: Json) -> list[_Added]:
    return cast(list[_Added], spec["added_tokens"])


def _harmless(spec: Json, control: frozenset[int]) -> Json:
    return {**spec, "added_tokens": [{**token, "special": token["id"] in control} for token in _added(spec)]}


def _without_prefix(spec: Json) -> Json:
    """A tokenizer whose steps neither add nor strip a leading space: a text has the same ids wherever it stands."""
    return {**spec, **{name: _still(spec[name]) for name in ("normalizer", "pre_tokenizer")}}


def _still(step: object) -> object:
    if isinstance(step, list):
        return [_still(each) for each in cast(list[object], step)]
    if not isinstance(step, dict):
        return step
    known = cast(Json, step)
    match known["type"]:
        case "Prepend" | "Strip":
            return {"type": "Sequence", "normalizers": []}
        case "Metaspace":
            return {**known, "prepend_scheme": "never"}
        case "ByteLevel" if "add_prefix_space" in known:
            return {**known, "add_prefix_space": False}
        case "Sequence":
            return {key: _still(value) for key, value in known.items()}
        case _:
            return known


def _types(step: object) -> set[str]:
    """The kinds of all steps in a pipeline."""
    if isinstance(step, list):
        return {kind for each in cast(list[object], step) for kind in _types(each)}
    if not isinstance(step, dict):
        return set()
    known = cast(Json, step)
    return {str(known["type"])} | _types(known.get("decoders"))


def _unknown(spec: Json) -> str | None:
    """The token for characters that the vocabulary lacks; None where it lacks none."""
    model = cast(Json, spec["model"])
    if isinstance(model.get("unk_id"), int):
        return cast(list[tuple[str, float]], model["vocab"])[cast(int, model["unk_id"])][0]
    return cast(str | None, model.get("unk_token"))


def _separable(name: str) -> bool:
    """Whether a text can hold this name without the token. Whitespace, single letters and bytes cannot."""
    return len(name) > 1 and not name.isspace() and not _BYTE.fullmatch(name)


def _ids(given: object) -> frozenset[int]:
    """The ids of a setting that may hold none, one or several."""
    each = cast(Sequence[object], given) if isinstance(given, list | tuple) else [given]
    return frozenset(token for token in each if isinstance(token, int))


def _byte_alphabet() -> dict[str, int]:
    """The letters that byte-level vocabularies write bytes with: printable Latin-1 as it is, others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


def _refuse_surrogates(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TokenizerError(
            f"the text holds {text[error.start]!r} at position {error.start}, a lone surrogate, which is no character: "
            "decode the document again from its bytes, or take text.encode(errors='ignore').decode()"
        ) from None
