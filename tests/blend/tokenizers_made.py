"""Small tokenizers of the kinds that models come with, trained on a few lines. Each is made once."""

import json
from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

LINES = [
    "The quick brown fox jumps over the lazy dog, and then it sleeps for a while.",
    "def double(x):\n    return 2 * x\n\n\nprint(double(21))",
    "東京は日本の首都です。 Tokyo is the capital of Japan.",
    "pipes <| and |> in prose: <|x|> or [y]",
    "<table><tr><td>naïve café</td></tr></table> 1,024 tokens/s   (measured) user system assistant",
] * 3
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
ORDINARY = ["<tool_call>", "</tool_call>", "<think>", "<|fim_prefix|>", "[INST]"]  # control, but not flagged special
WORDS = ["kvweave", "    "]  # added tokens that are no control
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
BRACKETS = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
    "{% elif m.role == 'assistant' %}{{ ' ' + m.content + '</s>' }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
)

METASPACE = ("metaspace-first", "metaspace-always", "prepend", "unigram")
LOSSLESS = ("bytes", "bytes-prefix", *METASPACE)
KINDS = (*LOSSLESS, "unknown", "nfkc")


@cache
def made(kind: str) -> PreTrainedTokenizerFast:
    """Do not change what this returns: everyone gets the same one."""
    if kind in ("bytes", "bytes-prefix", "nfkc"):
        return _chatml(_byte_level(kind), normalized=kind == "nfkc")
    return _llama(_unigram(kind) if kind in ("unigram", "unknown") else _metaspace(kind))


def fresh(kind: str, **more: object) -> PreTrainedTokenizerFast:
    """A copy that may be changed."""
    backend = Tokenizer.from_str(made(kind).backend_tokenizer.to_str())
    names = {name: str(token) for name, token in made(kind).special_tokens_map.items()}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, **{**names, "chat_template": made(kind).chat_template, **more}
    )


@cache
def bare(kind: str) -> Tokenizer:
    """What a byte-level tokenizer was before it got any added token."""
    return _byte_level(kind)


def _chatml(backend: Tokenizer, *, normalized: bool) -> PreTrainedTokenizerFast:
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    backend.add_tokens([AddedToken(name, normalized=normalized) for name in (*ORDINARY, *WORDS)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=TEMPLATE
    )


def _llama(backend: Tokenizer) -> PreTrainedTokenizerFast:
    backend.add_tokens([AddedToken(name, normalized=False) for name in (*ORDINARY, "<|im_start|>", "<|im_end|>")])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>", chat_template=BRACKETS
    )


def _byte_level(kind: str) -> Tokenizer:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=kind == "bytes-prefix")
    backend.decoder = decoders.ByteLevel()
    if kind == "nfkc":
        backend.normalizer = normalizers.NFKC()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(LINES, trainer)
    return backend


def _metaspace(kind: str) -> Tokenizer:
    """As in Llama 2, but that merges lead to `</s>`."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=260, show_progress=False))
    learned = json.loads(trained.to_str())["model"]
    ending = [("<", "/"), ("</", "s"), ("</s", ">")]
    merges = ending + [tuple(merge) for merge in learned["merges"] if "<" not in "".join(merge)]
    pieces = ["<unk>", "<s>", "</s>", *BYTES, "</", "</s", "▁", *learned["vocab"]]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    backend = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    if kind == "prepend":
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        scheme = kind.removeprefix("metaspace-")
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return backend


def _unigram(kind: str) -> Tokenizer:
    """The vocabulary holds `</s>` with the best of scores, as converted SentencePiece models do."""
    trained = Tokenizer(models.Unigram())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.train_from_iterator(LINES, trainers.UnigramTrainer(vocab_size=200, show_progress=False))
    learned = json.loads(trained.to_str())["model"]["vocab"]
    fallback = kind == "unigram"
    front = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), *[(name, 0.0) for name in BYTES if fallback]]
    vocabulary = front + [(piece, score) for piece, score in learned if piece != "<unk>"]
    backend = Tokenizer(models.Unigram(vocabulary, unk_id=0, byte_fallback=fallback))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    steps = [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="always")]
    backend.decoder = decoders.Sequence(steps) if fallback else steps[1]
    return backend


def spellings(kind: str) -> list[str]:
    """How a text could try to spell control tokens, whole, in halves, and as other letters that look the same."""
    names = [*SPECIAL, *ORDINARY, "<s>", "</s>", "<unk>", "<0x0A>", *made(kind).all_special_tokens]
    halves = [part for name in names for part in (name[: len(name) // 2], name[len(name) // 2 :])]
    wide = ["".join(chr(ord(letter) + 0xFEE0) for letter in name) for name in names]
    return list(dict.fromkeys([*names, *halves, *wide]))


def token_of(kind: str, name: str) -> int:
    """The id of a name that the vocabulary has."""
    token = made(kind).backend_tokenizer.token_to_id(name)
    assert token is not None, name
    return token


def name_of(kind: str, token: int) -> str:
    return str(made(kind).backend_tokenizer.id_to_token(token))


def end_of(kind: str) -> str:
    """How the end of a turn is spelled."""
    return str(made(kind).eos_token)
