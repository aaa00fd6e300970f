# transformers types its loaders loosely:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Loads a model; refuses one that fails in float32 or its own half precision: device, dtype, sampling, CUDA graphs."""

import logging
import platform
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import torch
from huggingface_hub import snapshot_download
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMultimodalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIMODAL_LM_MAPPING

from blend.adopt.digests import architecture_digest, rope_digest, stored_digest, weights_digest
from blend.adopt.disagreement import disagreement
from blend.adopt.in_float32 import in_float32
from blend.adopt.refusals import TOKENS, refuse_moving_angles, refuse_other_sight, refuse_structure
from blend.capture.capture import VERSION
from blend.engine.sampling import Sampling
from blend.errors import SamplingError, TokenizerError, UnsupportedModel
from blend.place.torch_placement import DTYPES
from blend.run.attention import FLEX, kernels
from blend.run.decoder import Decoder
from blend.run.layer_gate import find_layers, install, text_config
from blend.run.model_layers import examine
from blend.run.recordings import CudaRecorder
from blend.run.state_gate import install_state_gates
from blend.text.tokenizer import Tokenizer
from store.fingerprint import Fingerprint

log = logging.getLogger(__name__)

INPUTS = "+inputs"  # of records that have, beside keys and values, what enters layers that keep a state
PASSES = 3  # of equally many rows: run plainly, captured as CUDA graphs, and replayed

# What a forward pass that was not written for scattered rows raises.
MISFITS = (AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A decoder with its tokenizer. The fingerprint's prefix is empty: each collection fills in its own.

    `usual`: how its authors have it sample; at a temperature of 1 where they say nothing.
    """

    decoder: Decoder
    tokenizer: Tokenizer
    fingerprint: Fingerprint
    usual: Sampling


def load(
    name: str,
    *,
    device: str = "auto",
    dtype: str = "auto",
    digests: Path | None = None,
) -> LoadedModel:
    """A causal model by hub name or folder, as transformers loads it; no remote code. Raises UnsupportedModel.

    `dtype` "auto" is the checkpoint's, or float32 where the CPU is slow at bfloat16. `digests` is a file that keeps the
    digests of weight files.
    """
    target = device_named(device)
    if dtype not in ("auto", *DTYPES):
        raise UnsupportedModel(f"dtype {dtype!r} is none of auto, {', '.join(DTYPES)}")
    try:
        model = _model(name, dtype=dtype, device=target)
    except (OSError, ValueError, ImportError) as error:
        raise UnsupportedModel(
            f"{name!r} is neither a checkpoint's folder nor a hub name that loads: {error}"
        ) from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError, ImportError) as error:
        raise TokenizerError(f"the tokenizer of {name!r} does not load: {error}") from error
    if tokenizer.vocab_size <= len(tokenizer.added_tokens_decoder):
        raise TokenizerError(f"{name!r} holds no tokenizer: save the model's tokenizer.json beside its weights")
    if not _is_quantized(model.config):
        cast(torch.nn.Module, model).to(target)
        if dtype == "auto" and target.type == "cpu" and model.dtype == torch.bfloat16 and not multiplies_bfloat16():
            log.warning(
                "this CPU has no instructions for bfloat16: computing in float32, which is quicker; dtype names one"
            )
            model.float()
    return adopt(model, tokenizer, weights=stored_digest(_folder(name), cache=digests))


def _model(name: str, *, dtype: str, device: torch.device) -> PreTrainedModel:
    """All of a checkpoint; of a model that speaks, too, the part that reads.

    A weight that is missing is NaN, which shows where text runs through it: transformers draws it by chance.
    """
    # Code that a checkpoint brings along is neither run nor asked about, and pickles, which run code, are not loaded.
    config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    parts = cast(list[PreTrainedConfig], [getattr(config, part, None) for part in config.sub_configs])
    config = next((part for part in parts if type(part) in MODEL_FOR_MULTIMODAL_LM_MAPPING), config)
    kind = AutoModelForMultimodalLM if type(config) in MODEL_FOR_MULTIMODAL_LM_MAPPING else AutoModelForCausalLM
    # Quantizers place their own weights, by way of accelerate; others need no such package.
    options = {"output_loading_info": True, **({"device_map": device} if _is_quantized(config) else {})}
    loaded = kind.from_pretrained(
        name, config=config, dtype=dtype, trust_remote_code=False, use_safetensors=True, **options
    )
    model, found = cast(tuple[PreTrainedModel, dict[str, set[str]]], loaded)
    weights = model.state_dict()
    for missing in (weights[key] for key in found["missing_keys"] if weights[key].is_floating_point()):
        missing.fill_(torch.nan)
    return model


def _is_quantized(config: PreTrainedConfig) -> bool:
    return bool(getattr(config, "quantization_config", None))


def device_named(name: str) -> torch.device:
    """The device of this name; for "auto" a GPU, where there is one. Raises UnsupportedModel for an unknown name."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UnsupportedModel(f"there is no such device as {name!r} here: {error}") from error
    return device


def multiplies_bfloat16() -> bool:
    """Whether this CPU has instructions for it. Without them x86 is three times slower at it than in float32."""
    return platform.machine() not in ("x86_64", "AMD64") or torch.cpu._is_avx512_bf16_supported()  # pyright: ignore[reportPrivateUsage]


def _folder(name: str) -> Path:
    """Where the checkpoint's files are: by name or by path, the same files give the same digest."""
    path = Path(name)
    return path if path.is_dir() else Path(snapshot_download(name, local_files_only=True))


def adopt(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, weights: str | None = None) -> LoadedModel:
    """Check a model in memory and prepare it: its attention is replaced, its layers get gates."""
    model.eval()
    refuse_structure(model)
    if model.dtype not in DTYPES.values():
        raise UnsupportedModel(f"the model computes in {model.dtype}: load it with dtype float32, bfloat16 or float16")
    decoder = _decoder(model)
    wrapped = Tokenizer(tokenizer, generation=model.generation_config)
    print_ = Fingerprint(
        weights=weights or weights_digest(model),
        architecture=architecture_digest(text_config(model)),
        tokenizer=wrapped.digest,
        rope=rope_digest(text_config(model)),
        dtype=str(model.dtype).removeprefix("torch."),
        prefix="",
        capture=VERSION + INPUTS if decoder.model_layers.inputs else VERSION,
    )
    return LoadedModel(decoder, wrapped, print_, usual_sampling(model.generation_config))


def usual_sampling(said: GenerationConfig | None) -> Sampling:
    """The sampling that a generation config says; none of it where a field is beyond what is served."""

    def of(name: str, default: float) -> float:
        value = cast(float | None, getattr(said, name, None))
        return default if value is None else float(value)

    is_greedy = cast(object, getattr(said, "do_sample", None)) is False
    try:
        return Sampling(
            temperature=0.0 if is_greedy else of("temperature", 1.0),
            top_p=of("top_p", 1.0),
            top_k=int(of("top_k", 0)),
            min_p=of("min_p", 0.0),
            repetition_penalty=of("repetition_penalty", 1.0),
        )
    except SamplingError as error:
        log.warning("the model's generation config is left alone: %s", error)
        return Sampling(temperature=1.0)


@contextmanager
def _explained(why: Callable[[Exception], str]) -> Generator[None]:
    try:
        yield
    except UnsupportedModel:
        raise
    except MISFITS as error:
        raise UnsupportedModel(why(error)) from error


def _decoder(model: PreTrainedModel) -> Decoder:
    """The decoder, its structure checked in float32 and then compared in the model's own dtype."""
    name, vocabulary = type(model).__name__, text_config(model).vocab_size
    ids = [(3 + (7 * place) % 89) % vocabulary for place in range(TOKENS)]
    with _explained(lambda error: f"{name} fails in its own forward pass over text alone: {error}"):
        layers = find_layers(model)
        install(layers)
        states = install_state_gates(model, layers)
    with in_float32(model, layers):
        with _explained(lambda error: f"{name} fails in its own forward pass over text alone: {error}"):
            plain = _plain_logits(model, ids)
            refuse_other_sight(lambda other: _plain_logits(model, other), ids)
        with _explained(
            lambda _: f"{name} has a forward pass of its own, which takes whole prompts in order, no single rows"
        ):
            judged = _agreeing(model, plain, ids=ids, states=states)
    decoder, plain = (judged, plain) if judged.dtype == model.dtype else _narrowed(model, judged, ids=ids)
    _record(decoder, plain, ids=ids)
    return decoder


def _agreeing(model: PreTrainedModel, plain: Tensor, *, ids: Sequence[int], states: frozenset[int]) -> Decoder:
    """The decoder with the first kernel that gives the model's own logits."""
    window: int = text_config(model).max_position_embeddings
    reasons: list[str] = []
    for kernel in kernels(model):
        _attend_by(model, kernel)
        try:
            decoder = Decoder(model, examine(model, window=window, states=states), window=window)
            refuse_moving_angles(model, decoder)
            reason = disagreement(decoder, plain, ids=ids)
        except RuntimeError as error:
            if kernel != FLEX:
                raise
            log.info("FlexAttention does not compile for %s", type(model).__name__, exc_info=error)
            reasons.append(f"nothing, for it does not compile, with {kernel}")
            continue
        if reason is None:
            return decoder
        reasons.append(f"{reason} with {kernel}")
    raise UnsupportedModel(
        f"{type(model).__name__} computes something else in scattered rows than densely: {', '.join(reasons)}"
    )


def _narrowed(model: PreTrainedModel, judged: Decoder, *, ids: Sequence[int]) -> tuple[Decoder, Tensor]:
    """The decoder in the model's own dtype, checked against the model's own logits, and these logits."""
    name, dtype = type(model).__name__, str(model.dtype).removeprefix("torch.")
    kernel = text_config(model)._attn_implementation  # pyright: ignore[reportPrivateUsage]
    assert kernel is not None
    try:
        plain = _plain_logits(model, ids)
    except UnsupportedModel:
        remedy = "load it with dtype bfloat16 or float32"
        raise UnsupportedModel(f"{name} has finite logits in float32 and none in {dtype}: {remedy}") from None
    _attend_by(model, kernel)
    decoder = Decoder(model, judged.model_layers, window=judged.window)
    reason = disagreement(decoder, plain, ids=ids)
    if reason is not None:
        remedy = "its structure is sound in float32: load it so"
        raise UnsupportedModel(f"{name} computes something else in {dtype} with {kernel} ({reason}): {remedy}")
    return decoder, plain


def _record(decoder: Decoder, plain: Tensor, *, ids: Sequence[int]) -> None:
    """Turns CUDA graph capture of the layers on, if they compute the same when run, captured and replayed."""
    if decoder.device.type != "cuda" or not decoder.record_layers(partial(CudaRecorder, decoder.device)):
        return
    try:
        reasons = [disagreement(decoder, plain, ids=ids) for _ in range(PASSES)]
    except RuntimeError as error:
        reasons = [str(error)]
    if any(reasons) or not decoder.is_recorded:
        log.info("%s runs layer by layer, none recorded: %s", type(decoder.model).__name__, reasons)
        decoder.record_layers(None)


def _plain_logits(model: PreTrainedModel, ids: Sequence[int]) -> Tensor:
    """The model's own logits (T, V), by its own plain attention."""
    _attend_by(model, "eager")
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([list(ids)], device=model.device), use_cache=False).logits[0]
    if not bool(torch.isfinite(logits).all()):
        raise UnsupportedModel("the model's own logits are not finite: its weights are damaged, or some are missing")
    return logits


def _attend_by(model: PreTrainedModel, name: str) -> None:
    model.set_attn_implementation(name)
    if text_config(model)._attn_implementation != name:  # pyright: ignore[reportPrivateUsage]
        raise UnsupportedModel(f"{type(model).__name__} does not take its attention from transformers' registry")
