# transformers types its loaders loosely:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""A race to the first token on a model of a real family's shape, whose weights are random: they show time, no answers.

The weights are drawn anew, the same each time; the chunks' keys and values are kept. Prints nothing.
"""

import shutil
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from blend.adopt.load import LoadedModel, adopt, device_named
from service.access.private import private_folder, write_for_owner_only
from service.app.composition import compose_served, compose_store
from service.app.operating_point import FULL, OperatingPoint
from service.builtin import CHECKPOINT
from service.documents.chunk_capture import CaptureItem
from service.lab.bench.first_token import FirstTokenTimer, TimingRow, lay
from service.lab.bench.scratch_store import ScratchStore
from service.lab.bench.texts import chunks_of, made_up
from service.settings import Settings
from store.blob_store import BlobStore
from store.errors import StoreError
from store.key import Scope

FOLDER = TENANT = "race"
FAMILY = "SmolLM2-135M"
LAYERS = 30
SHAPE = {
    "num_hidden_layers": LAYERS,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100_000.0},
}
SEED = 135
CHUNKS = 14  # some 2,000 tokens
ROUNDS = 3  # that count

# `ask` as it fits the built-in model best, at a third of the depth: random weights fit nothing.
RATIO = 0.05
ASK = f"ask/layers={LAYERS // 3}/check=2/times=2"
CODEC = "q4"
WAYS = (FULL, OperatingPoint("reuse", 0.0, CODEC), OperatingPoint(ASK, RATIO, CODEC))


@dataclass(frozen=True, slots=True)
class RaceTrack:
    """A prompt whose chunks are stored, ready to be asked."""

    shape: str
    tokens: int
    rounds: int
    timer: FirstTokenTimer

    def run(self, *, on_turn: Callable[[OperatingPoint], None]) -> list[TimingRow]:
        """Sends the prompt every way in turn, round by round. `on_turn` gets the way that begins."""
        return self.timer.rows(CHUNKS, WAYS, repeats=self.rounds, on_progress=on_turn)


@contextmanager
def race_track(settings: Settings, *, on_stage: Callable[[str], None]) -> Generator[RaceTrack]:
    """A race in a folder below the data. What is damaged there, or of other weights, is made again.

    `on_stage` gets the name of each slow stage.
    """
    folder = settings.data / FOLDER
    given = {"model": FAMILY, "store": f"lmdb://{folder}", "policy": ASK, "ratio": RATIO, "codec": CODEC}
    mine = settings.model_copy(update=given)
    write_for_owner_only()
    private_folder(settings.data)
    with ExitStack() as stack:
        on_stage(f"drawing weights for {FAMILY}'s shape")
        model = compose_served(mine, _drawn)
        stack.callback(model.engine.close)
        chunks = chunks_of(made_up(mine.chunk_tokens), model, most=CHUNKS, tokens=mine.chunk_tokens).chunks
        store = stack.enter_context(_opened(mine, folder))
        part = ScratchStore(store, TENANT)
        timer = FirstTokenTimer(model, part, chunks=chunks)
        stack.enter_context(closing(timer))
        if not _is_whole(part, timer.items):
            on_stage("computing the keys and values of its text, once")
            for entry in list(store.entries(Scope(TENANT))):
                store.discard(entry.key)
            part.write(model, timer.items)
        yield RaceTrack(f"{FAMILY}'s shape ({LAYERS} layers)", lay(model, chunks).tokens, ROUNDS, timer)


def _drawn(settings: Settings) -> LoadedModel:
    """The model, with the tokenizer of the built-in one."""
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT, trust_remote_code=False)
    words = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    config = LlamaConfig(**SHAPE, **words, vocab_size=len(tokenizer), tie_word_embeddings=True)
    torch.manual_seed(SEED)
    model = LlamaForCausalLM(config)
    cast(torch.nn.Module, model).to(device_named(settings.device))
    return adopt(model, tokenizer)


def _opened(settings: Settings, folder: Path) -> BlobStore:
    try:
        return compose_store(settings)
    except StoreError:
        shutil.rmtree(folder, ignore_errors=True)
        return compose_store(settings)


def _is_whole(part: ScratchStore, items: Sequence[CaptureItem]) -> bool:
    """Whether every chunk is there, and every frame of it is what was written."""
    try:
        return bool(part.speeds(items, repeats=1))
    except StoreError:
        return False
