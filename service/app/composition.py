"""The composition root chooses concrete classes: store, model, engine and limits, embedder, reranker, vLLM, tracer."""

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from huggingface_hub.utils import disable_progress_bars
from transformers.utils import logging as transformers_logging

from blend.adopt.load import LoadedModel, device_named, load
from blend.engine.engine import Engine, EngineLimits
from blend.engine.local_engine import LocalEngine
from blend.fuse.fuse import BlendOrder
from blend.fuse.policy import check_runs
from retriever.embedders.embedding import Embedder, Embedders, Reranker, cached
from retriever.embedders.remote import Access, RemoteEmbedder, RemoteReranker
from retriever.errors import EmbeddingError
from retriever.library import Library
from service.access.private import private_folder
from service.answers.blend_decision import EXACT
from service.app.compose_truth import compose_truth
from service.app.core import Core
from service.app.operating_point import operating_point, point_file
from service.builtin import CHECKPOINT
from service.documents.checked_model import checked_model
from service.documents.libraries import Libraries, TurnTaking, without_folders
from service.documents.tenants import Tenants
from service.model.codec_check import check_codec
from service.model.hub import check_name, hub_checkpoint
from service.model.kept_speeds import conditions, kept_speeds
from service.model.pinned_memory import pinned_memory
from service.model.prompt_builder import GROUNDED, PromptBuilder
from service.model.served_model import ServedModel
from service.model.speeds import ModelSpeeds
from service.settings import AUTO, BUILTIN, ENCODER, NONE, Settings, SettingsError
from service.telemetry.traces import Tracer
from service.truth.control import Control
from service.truth.databases import TENANTS
from service.truth.truth import Truth
from service.vllm.agreement import Comparison, GeneratorTimes, HandedSpeeds
from service.vllm.handoffs import Handoffs
from service.vllm.vllm_client import VllmClient
from service.vllm.vllm_engine import VllmEngine
from store.blob_store import BlobStore
from store.codec.unpacked import allocate
from store.url import open_store, place_of

log = logging.getLogger(__name__)

DIGESTS = "digests.json"
EMBEDDERS = "embedders.json"  # what they were loaded from
PREFIXES = 16  # the part of the memory for contexts that beginnings of prompts may take besides
REMOTE = ("http://", "https://")


def compose_store(settings: Settings) -> BlobStore:
    """The store that the settings name, whose tier in memory is pinned for a GPU."""
    on_gpu = torch.cuda.is_available() and settings.device.startswith(("auto", "cuda"))
    return open_store(settings.store, pinned_memory if on_gpu else allocate)


def compose_model(settings: Settings) -> LoadedModel:
    """The model that the settings name; `builtin` is the one that comes with kvweave."""
    transformers_logging.disable_progress_bar()  # a service's log, and a command's own bar, have no place for them
    disable_progress_bars()
    name = str(CHECKPOINT) if settings.model == BUILTIN else hub_checkpoint(settings.model, setting="model")
    digests = settings.data / DIGESTS if settings.data.is_dir() else None
    return load(name, device=settings.device, dtype=settings.dtype, digests=digests)


def compose_core(settings: Settings) -> Core:
    """A running service. Raises what stops a start at once; what the model says comes later."""
    if settings.model != BUILTIN:
        hub_checkpoint(settings.model, setting="model")
    embedder_source(settings)
    return Core(
        settings,
        truth=lambda: compose_truth(settings, place_of(settings.store)),
        store=lambda: compose_store(settings),
        load=lambda store, control, truth, handoffs: compose_tenants(
            settings, store, control=control, truth=truth, equipped=partial(_equipped, settings, handoffs=handoffs)
        ),
        tracer=_tracer(settings),
    )


def compose_tenants(
    settings: Settings,
    store: BlobStore,
    *,
    control: Control,
    truth: Truth,
    equipped: Callable[[ServedModel], ServedModel] = lambda model: model,
) -> Tenants:
    """What there is to work in once the model is there, which takes a while. `equipped`: the model for who serves."""
    embedder = None if _comes_late(settings) else compose_embedder(settings)
    truth.bring_points(point_file(settings, "").parent)
    with ExitStack() as stack:
        loaded = compose_served(settings)
        stack.callback(loaded.engine.close)
        libraries = _libraries(settings, truth, embedder=embedder, engine=loaded.engine)
        model = checked_model(loaded, truth.tenants(), library=libraries.open, store=store, control=control)
        model = equipped(model)
        stack.pop_all()
    return Tenants(model, store=store, control=control, libraries=libraries, truth=truth)


def _equipped(settings: Settings, model: ServedModel, *, handoffs: Handoffs) -> ServedModel:
    """The model with what a service has besides: what prompts take here, and the generator that the settings name."""

    def let_go(tenant: str) -> None:
        handoffs.void(tenant)
        model.engine.end_sessions(tenant)

    def end_session(tenant: str, name: str) -> None:
        handoffs.end_sharing(name)
        model.engine.end_sessions(tenant, name)

    model = replace(model, speeds=_speeds(settings, model), let_go=let_go, end_session=end_session)
    address = settings.generator
    if address is None:
        return model
    if model.has_states:
        raise SettingsError(
            f"generator: {settings.model} has linear-attention layers, whose states vLLM takes from nobody: "
            "leave the generator out, and answers are generated here"
        )
    times = GeneratorTimes()
    client = VllmClient(address.url, address.key)
    engine = VllmEngine(Comparison(model, model.engine, handoffs, client, address, times))
    speeds = None if model.speeds is None else HandedSpeeds.over(model.speeds, times)
    return replace(model, engine=engine, speeds=speeds)


def _speeds(settings: Settings, model: ServedModel) -> ModelSpeeds | None:
    """What prompts take here, as it is kept, or measured now; None where reuse is wanted whatever it takes."""
    if settings.reuse == "always" or model.order.policy in EXACT:
        return None
    file = point_file(settings, model.fingerprint.weights).with_suffix(".speeds.json")
    return kept_speeds(model, file, conditions=conditions(model, device_named(settings.device)))


def compose_served(settings: Settings, load: Callable[[Settings], LoadedModel] = compose_model) -> ServedModel:
    """The model with an engine around it. Whoever asks for it closes the engine."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    model = load(settings)
    has_states = bool(model.decoder.model_layers.states)
    point = operating_point(settings, model.fingerprint.weights, has_states=has_states)
    replays = bool(model.decoder.model_layers.stretches)
    check_runs(point.policy, ratio=point.ratio, has_states=has_states, replays=replays)
    check_codec(model.decoder, point.codec)
    engine = LocalEngine(
        model.decoder,
        model.tokenizer,
        fingerprint=model.fingerprint,
        limits=EngineLimits(
            kv_bytes=settings.kv_bytes,
            prefix_bytes=settings.kv_bytes // PREFIXES,
            spill=settings.data,
            waiting=settings.max_requests,
            capture_share=settings.capture_share,
            weights=settings.weights,
        ),
    )
    return ServedModel(
        *(engine, PromptBuilder(model.tokenizer), model.fingerprint),
        codec=point.codec,
        order=BlendOrder(point.policy, point.ratio),
        window=model.decoder.window,
        vocabulary=model.decoder.vocabulary,
        has_states=has_states,
        usual=model.usual,
        system=usual_system(settings),
    )


def usual_system(settings: Settings) -> str | None:
    """The system prompt of new collections; None for that of prompts where nothing is said.

    The built-in model was taught that one, and knows no "not there".
    """
    return None if settings.model == BUILTIN else GROUNDED


def _comes_late(settings: Settings) -> bool:
    """Whether the embedder is one of the hub, which no start waits for. Folders and services are there at once."""
    source = embedder_source(settings)
    return bool(source) and not Path(source).is_dir()


def _libraries(settings: Settings, truth: Truth, *, embedder: Embedder | None, engine: Engine) -> Libraries:
    """What opens the libraries of tenants, with the embedder where it is there. Indexes are files of this machine."""
    source, reranker = embedder_source(settings), _reranker(settings)
    if _comes_late(settings):
        embedders = Embedders(lacks=f"the embedder {without_folders(source)} is being loaded", is_awaited=True)
    elif embedder:
        embedders = Embedders(TurnTaking(embedder, engine) if source else embedder)
    else:
        remedy = "install `kvweave[embedder]`, or " if settings.embedder == AUTO else ""
        embedders = Embedders(lacks=f"{remedy}name one in the settings")

    def open_library(tenant: str) -> Library:
        folder = settings.data / TENANTS / tenant
        with ExitStack() as undo:
            catalog = truth.catalog(tenant)
            undo.callback(catalog.close)
            private_folder(folder)
            made = Library(catalog, folder, embedders=embedders, reranker=reranker)
            undo.pop_all()
            return made

    def loaded(source: str) -> Embedder:
        embedder = compose_embedder(settings.model_copy(update={"embedder": source}))
        assert embedder is not None, source
        return TurnTaking(embedder, engine)

    return Libraries(open_library, embedders, source, loaded, settings.data / EMBEDDERS)


def embedder_source(settings: Settings) -> str:
    """The folder or the name of the hub that the embedder is loaded from; empty where it is neither.

    Raises SettingsError for what can be neither, without asking the hub.
    """
    name = settings.embedder
    if name == AUTO:
        return ENCODER if find_spec("sentence_transformers") else ""
    if name == NONE or name.startswith(REMOTE):
        return ""
    check_name(name, setting="embedder")
    return name


def compose_embedder(settings: Settings) -> Embedder | None:
    """What search by vectors needs, as the settings name it, from the hub too; None where they name none."""
    name = settings.embedder
    if name.startswith(REMOTE):
        url, _, model = name.partition("#")
        if not model:
            raise SettingsError(f"embedder: {url!r} is asked for a model by name: write {url}#NAME")
        return cached(RemoteEmbedder(Access(url, settings.embedder_key.get_secret_value()), model))
    source = embedder_source(settings)
    if not source:
        return None
    try:
        from retriever.embedders.encoder import Encoder
    except ImportError as error:
        raise EmbeddingError(f"the encoder {source!r} needs the extra `kvweave[embedder]`: {error}") from error
    try:
        return cached(Encoder(hub_checkpoint(source, setting="embedder"), device=settings.device))
    except EmbeddingError:
        hub_checkpoint.cache_clear()  # what was fetched may be half of it: the hub is asked again next time
        raise


def _reranker(settings: Settings) -> Reranker | None:
    if not settings.reranker:
        return None
    url, _, model = settings.reranker.partition("#")
    return RemoteReranker(Access(url, settings.reranker_key.get_secret_value()), model)


def _tracer(settings: Settings) -> Tracer:
    if not settings.traces:
        return Tracer()
    try:
        from service.telemetry.export import exporting_tracer
    except ImportError:
        raise SettingsError("traces: install the extra `kvweave[traces]` to send traces") from None
    try:
        return exporting_tracer(settings.traces)
    except ValueError as error:
        raise SettingsError(f"traces: {error}") from None
