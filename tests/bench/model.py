"""Random models of a real one's shape, prompts of chunks whose records lie in memory, and a timed fuse of them."""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast, Qwen2Config, Qwen3_5TextConfig

from blend.adopt.load import LoadedModel, adopt
from blend.capture.capture import capture
from blend.fuse.fuse import BlendOrder, FusedPrompt, fuse
from blend.fuse.prompt import ChunkSegment, Prompt, TextSegment, lay_out
from blend.fuse.record_loader import Readers
from blend.place.torch_placement import DTYPES
from service.documents.chunk_capture import tailed
from service.model.capture_context import ChunkIds
from store.blob import Terms
from store.blob_store import BlobStore
from store.codec.encode import encode
from store.fingerprint import Fingerprint
from store.key import CacheKey
from store.reader import BlobReader
from store.record_source import BlobSource, HeldRecord

Ids = tuple[int, ...]

CHUNK = 256  # tokens
PREFIX, QUESTION = 32, 32  # tokens of them; the prefix is not the one of the capture, so that no chunk is exact
DISTINCT = 4  # chunks that are captured; longer prompts repeat them
LISTED = 97  # ids in use, far fewer than a vocabulary


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a Qwen2 model; as it stands, that of Qwen2.5-0.5B. With `linear_heads` of a Qwen3.5 model, three of whose four
    layers keep a state instead of keys and values.
    """

    layers: int = 24
    hidden: int = 896
    intermediate: int = 4864
    heads: int = 14
    kv_heads: int = 2
    vocabulary: int = 151936
    linear_heads: int = 0  # of values; 16 of keys


SHAPES = {
    "0.5B": Shape(),
    "8B": Shape(32, 4096, 14336, heads=32, kv_heads=8, vocabulary=128256),
    "0.8B hybrid": Shape(24, 1024, 3584, heads=8, vocabulary=248320, linear_heads=16),
    "4B hybrid": Shape(32, 2560, 9216, heads=16, kv_heads=4, vocabulary=248320, linear_heads=32),
}


def best_device() -> str:
    """The accelerator, where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def random_model(shape: Shape, *, dtype: str, device: str = "cpu") -> PreTrainedModel:
    """As transformers makes it, with its default attention; the seed is fixed."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    config = Qwen2Config(**sizes)
    if shape.linear_heads:
        of_states: dict[str, Any] = {"linear_num_key_heads": 16, "linear_num_value_heads": shape.linear_heads}
        config = Qwen3_5TextConfig(**sizes, **of_states, head_dim=256)
    with torch.device(device):  # numbers of billions of weights are drawn where they are wanted
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=DTYPES[dtype]).eval()  # pyright: ignore[reportArgumentType]
    return model


def adopted(model: PreTrainedModel) -> LoadedModel:
    """Made ours. The tokenizer knows single bytes only: ids beyond them have no text."""
    return adopt(model, _bytes(), weights="random")


def _bytes() -> PreTrainedTokenizerFast:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: token for token, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


@cache
def words(count: int, seed: int) -> Ids:
    """Token ids; others for another seed."""
    return tuple(3 + (place * (7 + 2 * seed) + seed) % LISTED for place in range(count))


@dataclass(frozen=True, slots=True)
class Corpus:
    """Captured chunks, as parts of a prompt."""

    chunks: Sequence[ChunkSegment]

    def prompt(self, tokens: int, *, question: int = QUESTION) -> Prompt:
        """Prefix, chunks of so many tokens together, question."""
        count, rest = divmod(tokens, CHUNK)
        assert rest == 0, f"{tokens} is no multiple of {CHUNK}"
        chunks = tuple(self.chunks[number % len(self.chunks)] for number in range(count))
        return Prompt(words(PREFIX, 1), chunks, words(question, 2))


def captured(model: LoadedModel) -> Corpus:
    """Records of a few chunks, behind a prefix that the prompts do not have."""
    behind = words(PREFIX, 3)
    texts = [words(CHUNK, 10 + number) for number in range(DISTINCT)]
    records = capture(model.decoder, behind, chunks=texts)
    fingerprint = model.fingerprint.behind(behind)
    pairs = zip(texts, records, strict=True)
    return Corpus([ChunkSegment(text, HeldRecord(record, fingerprint)) for text, record in pairs])


@dataclass(frozen=True, slots=True)
class StoredCorpus:
    """Chunks in a store, by their keys, opened anew for each prompt; `title` stands behind each in the prompt."""

    store: BlobStore
    fingerprint: Fingerprint
    chunks: Sequence[tuple[Ids, CacheKey]]
    title: Ids = ()

    def prompt(self, tokens: int) -> Prompt:
        """Prefix, chunks of so many tokens together, question."""
        segments: list[ChunkSegment | TextSegment] = []
        for text, key in self.chunks[: tokens // len(self.chunks[0][0])]:
            found = self.store.open(key)
            assert isinstance(found, BlobReader), found
            segments += [ChunkSegment(text, BlobSource(found, self.fingerprint)), TextSegment(self.title)]
        return Prompt(words(PREFIX, 1), tuple(segments), words(QUESTION, 2))


def stored(model: LoadedModel, store: BlobStore, options: argparse.Namespace) -> StoredCorpus:
    """Chunks of so many tokens together, each captured once; their titles with them, unless these are `apart`."""
    behind, title = words(PREFIX, 3), words(options.titles, 4)
    tail = () if options.apart else title
    texts = [words(CHUNK, 10 + number) for number in range(options.tokens // CHUNK)]
    chunks = [(text, CacheKey("bench", str(at), "random", options.stored)) for at, text in enumerate(texts)]
    for text, key in chunks:
        [record] = capture(model.decoder, behind, chunks=[text + tail])
        record = tailed(record, ChunkIds(text, tail))
        store.put_all([encode(record, key, terms=Terms(0, precomputed=True))])
    store.flush()
    return StoredCorpus(store, model.fingerprint.behind(behind), chunks, title)


def text_prompt(tokens: int, seed: int) -> Prompt:
    """Nothing cached."""
    return Prompt((), (TextSegment(words(tokens - QUESTION, seed)),), words(QUESTION, 2))


def fused(model: LoadedModel, prompt: Prompt, *, order: BlendOrder, readers: Readers) -> tuple[FusedPrompt, float]:
    """A prompt from its layout to its logits, in a context of its own, and the seconds of all that."""
    start = time.perf_counter()
    decoder = model.decoder
    layout = lay_out(prompt, fingerprint=model.fingerprint, window=decoder.window, vocabulary=decoder.vocabulary)
    result = fuse(decoder, layout, context=decoder.context(len(layout.ids)), order=order, readers=readers)
    return result, time.perf_counter() - start
