"""A running service: opened, its model loaded in a thread, ready or why not, closed. Names no class of store or model.

What is quick to open is open at once; the model loads behind, and until it is there everything else is Unavailable.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice

from blend.errors import BlendError
from retriever.errors import RetrieverError
from service.access.one_time_link import OneTimeLink
from service.access.places import Places
from service.access.principal import Principal
from service.answers.kept_answers import KeptAnswers
from service.answers.pipeline import Pipeline
from service.answers.text_vectors import TextVectors
from service.documents.ingest import Ingest
from service.documents.tenants import Tenant, Tenants
from service.errors import Unavailable
from service.model.served_model import ServedModel
from service.settings import Settings, SettingsError
from service.telemetry.logs import fields
from service.telemetry.metrics import Metrics
from service.telemetry.traces import Tracer
from service.truth.control import Control
from service.truth.databases import ADMIN_KEY
from service.truth.peers import BEHIND, Follower
from service.truth.truth import Truth
from service.vllm.handoffs import Handoffs
from store.blob_store import BlobStore
from store.errors import StoreError
from store.fingerprint import Fingerprint
from store.key import Scope

log = logging.getLogger(__name__)

LOOKED_AT = 10_000  # blobs of a tenant, to find out whether any is of this model
WAITING_BODIES = 4  # of the largest, which may wait of a tenant

_START_ERRORS = (BlendError, RetrieverError, SettingsError, StoreError, OSError)


@dataclass(frozen=True, slots=True)
class _Working:
    tenants: Tenants
    ingest: Ingest
    pipeline: Pipeline
    text_vectors: TextVectors


class Core:
    """Everything that endpoints call. Opening it raises what stops a start; `close` takes back all that it began."""

    def __init__(
        self,
        settings: Settings,
        *,
        truth: Callable[[], Truth],
        store: Callable[[], BlobStore],
        load: Callable[[BlobStore, Control, Truth, Handoffs], Tenants],
        tracer: Tracer,
    ) -> None:
        """Opens what is quick to open, and calls `load`, which takes long, in a thread."""
        self.settings = settings
        self.metrics = Metrics()
        self.places = Places(settings.max_requests, has_keys=settings.auth)
        self.link = OneTimeLink()
        self.kept_answers = KeptAnswers()
        self.tracer = tracer
        self.model_name = settings.shown_model
        self.created = time.time()
        self.failed = threading.Event()  # the model did not load: `not_ready` says why
        self.is_stopping: Callable[[], bool] = lambda: False  # as whoever runs it says: who follows a job then ends
        self._problem = "the model is loading: ask again in a moment"
        self._working: _Working | None = None
        self._ended = ""
        with ExitStack() as stack:
            self.truth = truth()
            stack.callback(self.truth.close)
            stack.enter_context(self.truth.serve(self._end))
            self.control = self.truth.control()
            self.rates = self.truth.rates()
            stack.callback(self.control.close)
            if settings.auth:
                self.control.ensure_admin(settings.data / ADMIN_KEY)
            self.store = store()
            stack.callback(self.store.close)
            stack.callback(tracer.close)
            self._handoffs = Handoffs(settings.kv_bytes // 2)
            stack.callback(self._handoffs.close)
            self._stack = stack.pop_all()
        self._watch()
        self._loading = threading.Thread(target=self._load, args=[load], name="kvweave-load", daemon=True)
        self._loading.start()

    @property
    def ingest(self) -> Ingest:
        """The worker on uploads. Raises Unavailable while the model loads."""
        return self._ready().ingest

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline that answers. Raises Unavailable while the model loads."""
        return self._ready().pipeline

    @property
    def text_vectors(self) -> TextVectors:
        """What makes vectors of texts. Raises Unavailable while the model loads."""
        return self._ready().text_vectors

    @property
    def tenants(self) -> Tenants:
        """All tenants. Raises Unavailable while the model loads."""
        return self._ready().tenants

    @property
    def model(self) -> ServedModel:
        """The model that is served. Raises Unavailable while it loads."""
        return self._ready().tenants.model

    @property
    def handoffs(self) -> Handoffs:
        """The prompts that wait to be fetched. Raises Unavailable while the model loads."""
        self._ready()
        return self._handoffs

    def tenant(self, principal: Principal) -> Tenant:
        return self.tenants.open(principal.tenant)

    def lease(self) -> int | None:
        """The lease under which it answers; None where other services had to go on without it."""
        return self.truth.peers.lease()

    def not_ready(self) -> str | None:
        """The reason why it cannot serve, or None."""
        if self._ended or self._working is None:
            return self._ended or self._problem
        if self.lease() is None:
            return BEHIND
        if not self._working.tenants.model.engine.takes:
            return "the engine has stopped, the log says why: start the service again"
        try:
            self.store.tenants()
            self.truth.tenants()
        except (StoreError, RetrieverError) as error:
            return str(error)
        return None

    def search_waits(self) -> str:
        """What search by vectors waits for, of all tenants together, which anybody may know; empty where it does not.

        Raises Unavailable while the model loads.
        """
        tenants = self.tenants
        if tenants.libraries.embedders.is_awaited:
            return tenants.libraries.embedders.lacks
        counted = [each.library.embedded for each in tenants.opened()]
        made, chunks = (sum(each[place] for each in counted if each) for place in (0, 1))
        return f"vectors of {made / chunks:.0%} of the chunks are made" if chunks else ""

    @property
    def embedder_name(self) -> str:
        """The name of the embedder; empty while there is none. Raises Unavailable while the model loads."""
        wanted = self.tenants.libraries.embedders.wanted
        return wanted.name if wanted else ""

    def rest(self) -> bool:
        """Lets go of what no question and no upload used since the last call; returns whether that was anything."""
        opened = self._working.tenants.opened() if self._working else []
        return sum(each.catalog.rest() for each in opened) > 0

    def wait(self) -> None:
        """Returns when the model is there, or will not be."""
        self._loading.join()

    def close(self) -> None:
        """Finish what runs, and let go of everything. What waits in ingest goes on at the next start."""
        self._loading.join()
        self._stack.close()

    def _ready(self) -> _Working:
        if self._working is None:
            raise Unavailable(self._problem)
        return self._working

    def _end(self, reason: str) -> None:
        """Ends the service where somebody else is it."""
        self._ended = reason
        self.failed.set()

    def _load(self, load: Callable[[BlobStore, Control, Truth, Handoffs], Tenants]) -> None:
        try:
            self._begin(load(self.store, self.control, self.truth, self._handoffs))
        except _START_ERRORS as error:
            self._problem = str(error)
            log.error("the service cannot start", extra=fields(reason=str(error)))
            self.failed.set()

    def _begin(self, tenants: Tenants) -> None:
        self._stack.callback(tenants.close)
        settings = self.settings
        ingest = Ingest(
            tenants,
            metrics=self.metrics,
            chunk_tokens=settings.chunk_tokens,
            waiting_bytes=WAITING_BODIES * settings.max_body_bytes,
        )
        self._stack.callback(ingest.close)
        pipeline = Pipeline(tenants, ingest, settings=settings, metrics=self.metrics, tracer=self.tracer)
        self._stack.callback(pipeline.close)
        text_vectors = TextVectors(tenants.libraries.embedders, tenants.model.prompt_builder.tokenizer)
        self._stack.callback(text_vectors.close)
        self.metrics.watch(
            "requests_in_flight", "Requests for answers that are not over.", read=lambda: pipeline.in_flight
        )
        self.metrics.watch(
            "fills_waiting", "Missing chunks that wait to be computed.", read=lambda: ingest.waiting_fills
        )
        self.metrics.watch_engine(tenants.model.engine.load)
        ingest.start()
        tenants.libraries.begin(tenants.serving, then=ingest.wake_all)
        self.truth.peers.follow(Follower(tenants.learn, ingest.wake, ingest.resting, tenants.forget))
        self._working = _Working(tenants, ingest, pipeline, text_vectors)
        model = tenants.model
        log.info("ready", extra=fields(model=settings.model, window=model.window, codec=model.codec))
        if pipeline.foreign_documents is not None:
            pipeline.foreign_documents.look_through(tenants)
        self._compare(model)

    def _watch(self) -> None:
        self.metrics.watch_store(self.store.usage)
        self.metrics.watch("places_taken", "Requests that hold a place.", read=lambda: self.places.taken)
        self.metrics.watch("followers", "Open streams of jobs' events.", read=lambda: self.places.followers)
        self.metrics.watch("ready", "Is the model loaded?", read=lambda: self._working is not None)

    def _compare(self, model: ServedModel) -> None:
        """Warn where a tenant's blobs are all of other models or settings: every chunk will be computed again."""
        known = {digest: Fingerprint.from_dict(fields) for digest, fields in self.control.fingerprints().items()}
        mine = {digest for digest, each in known.items() if model.fingerprint.behind(()).differs(_bare(each)) is None}
        try:
            for tenant in self.store.tenants():
                found = {entry.key.origin for entry in islice(self.store.entries(Scope(tenant)), LOOKED_AT)}
                if found and not found & mine:
                    others = [known[digest] for digest in found if digest in known]
                    field = model.fingerprint.behind(()).differs(_bare(others[0])) if others else "an unknown field"
                    held = sum(entry.nbytes for entry in self.store.entries(Scope(tenant)))
                    log.warning(
                        "the store holds only chunks of another fingerprint: each is computed when it is asked for, "
                        "all by kvweave precompute over the same files; kvweave gc --fingerprint ID frees the old ones",
                        extra=fields(tenant=tenant, differs=field, fingerprints=", ".join(sorted(found)), nbytes=held),
                    )
        except StoreError as error:
            log.warning("the store could not be looked through", extra=fields(reason=str(error)))


def _bare(fingerprint: Fingerprint) -> Fingerprint:
    return fingerprint.behind(())
