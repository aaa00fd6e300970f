"""The composition root: the one place that chooses concrete classes."""

from pathlib import Path

import torch
from transformers.utils import logging

from blend.fuse import Order
from blend.load import Model, load
from blend.local import Limits, LocalEngine
from retriever.catalog.sqlite import SqliteCatalog
from retriever.embedding import Embedder, EmbeddingError, Reranker, cached
from retriever.library import Library
from retriever.remote import Access, RemoteEmbedder, RemoteReranker
from service.builtin import CHECKPOINT
from service.core import Core, Loaded, Makers
from service.evaluate.point import operating_point
from service.precompute.work import Capture
from service.press import Press
from service.prompts import Wording
from service.settings import Settings, SettingsError
from service.telemetry.traces import Tracer, silent
from store.base import BlobStore
from store.url import open_store

DIGESTS = "digests.json"


def compose_store(settings: Settings) -> BlobStore:
    """The store that the settings name."""
    return open_store(settings.store)


def compose_model(settings: Settings) -> Model:
    """The model that the settings name; `builtin` is the one that comes with kvweave."""
    name = settings.model
    if name == "builtin":
        name = str(CHECKPOINT)
        logging.disable_progress_bar()  # it is there in no time
    digests = settings.data / DIGESTS if settings.data.is_dir() else None
    return load(
        name, device=None if settings.device == "auto" else settings.device, dtype=settings.dtype, digests=digests
    )


def compose_core(settings: Settings) -> Core:
    """A running service. Raises what stops a start at once; what the model says comes later."""
    makers = Makers(
        store=lambda: compose_store(settings),
        load=lambda: compose_loaded(settings),
        tracer=_tracer(settings),
        model_name=settings.model,
    )
    return Core(settings, makers)


def compose_loaded(settings: Settings) -> Loaded:
    """What there is once the model is there, which takes a while."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    embedder, reranker = _embedder(settings), _reranker(settings)
    model = compose_model(settings)
    point = operating_point(settings, model.fingerprint.weights)
    engine = LocalEngine(
        model.decoder,
        model.tokenizer,
        fingerprint=model.fingerprint,
        limits=Limits(kv_bytes=settings.kv_bytes, waiting=settings.max_requests),
    )
    press = Press(
        *(engine, Wording(model.tokenizer), model.fingerprint),
        codec=point.codec,
        window=model.decoder.window,
        vocabulary=model.decoder.vocabulary,
    )
    return Loaded(
        press,
        Order(point.policy, point.ratio),
        lambda folder: _library(folder, embedder=embedder, reranker=reranker),
    )


def compose_remote(settings: Settings, actors: int) -> Capture:
    """What captures on a Ray cluster."""
    try:
        from service.precompute.spread import spread
    except ImportError as error:
        raise SettingsError(f"--executor ray: install the extra `kvweave[ray]` ({error})") from None
    return spread(settings, actors)


def _library(folder: Path, *, embedder: Embedder | None, reranker: Reranker | None) -> Library:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    catalog = SqliteCatalog(folder / "catalog.sqlite")
    return Library(catalog, folder, embedders=[embedder] if embedder else [], reranker=reranker)


def _embedder(settings: Settings) -> Embedder | None:
    name = settings.embedder
    if not name:
        return None
    if name.startswith(("http://", "https://")):
        url, model = _split(name, "embedder")
        return cached(RemoteEmbedder(Access(url, settings.embedder_key.get_secret_value()), model))
    try:
        from retriever.encoder import Encoder, EncoderOptions
    except ImportError as error:
        raise EmbeddingError(f"the encoder {name!r} cannot be loaded: {error}") from error
    return cached(Encoder(name, options=EncoderOptions(device=settings.device)))


def _reranker(settings: Settings) -> Reranker | None:
    if not settings.reranker:
        return None
    url, _, model = settings.reranker.partition("#")
    return RemoteReranker(Access(url, settings.reranker_key.get_secret_value()), model)


def _split(name: str, what: str) -> tuple[str, str]:
    url, _, model = name.partition("#")
    if not model:
        raise SettingsError(f"{what}: {url!r} is asked for a model by name: write {url}#NAME")
    return url, model


def _tracer(settings: Settings) -> Tracer:
    if not settings.traces:
        return silent()
    try:
        from service.telemetry.export import tracer_to
    except ImportError:
        raise SettingsError("traces: install the extra `kvweave[traces]` to send traces") from None
    try:
        return tracer_to(settings.traces)
    except ValueError as error:
        raise SettingsError(f"traces: {error}") from None
