"""A core whose ingest serves at once and whose pipeline tells a fixed tale; catalogs, tenants and metrics are real."""

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from blend.fuse.fuse import BlendOrder
from retriever.catalog.sqlite import SqliteCatalog
from retriever.documents import Document, DocumentPart, Json
from retriever.filter_condition import scope
from retriever.library import Library
from retriever.search import Found, Query
from retriever.types import Collection, Passage
from retriever.upload_types import NewUpload, UploadState
from service.access.domains import DomainChunk
from service.access.one_time_link import OneTimeLink
from service.access.places import Places
from service.access.principal import Principal, Role
from service.access.rates import Rates
from service.answers.answer_request import AnswerRequest, Lookup
from service.answers.events import ChunkReport, Delta, Event, Finished, Fused, Loaded, Report, Retrieved, Source, Usage
from service.app.core import Core
from service.documents.chunk_caches import ChunkCaches, ChunkState, KvState
from service.documents.collection_rules import CollectionRules
from service.documents.drafts import decode_draft
from service.documents.tenants import Tenant
from service.settings import Settings
from service.telemetry.metrics import Metrics
from service.truth.control import BlendingSwitch
from service.truth.peers import Peers
from service.vllm.handoffs import Handoffs
from store.key import Scope
from store.tiers.memory_store import MemoryStore
from tests.retriever.fakes import Longest

USAGE = Usage(prompt=40, completion=2, reused=30, recomputed=4)


class Letters:
    """A letter is a token."""

    system: str | None = None

    def ids(self, text: str) -> list[int]:
        return list(text.encode())

    def let_go(self, tenant: str) -> None:
        """No prompt of it is handed over."""


class FakeCaches:
    """Everything is stored in RAM; what it was told is kept."""

    def __init__(self) -> None:
        self.model = Letters()
        self.domain_fields = frozenset[str]()
        self.told: list[tuple[str, list[str]]] = []

    def states(self, passages: Sequence[Passage]) -> dict[str, ChunkState]:
        return {passage.id: ChunkState(passage.id, KvState.STORED, 100, "ram") for passage in passages}

    def prefetch(self, passages: Sequence[Passage]) -> int:
        return self._touch("prefetch", [passage.id for passage in passages])

    def pin(self, passages: Sequence[Passage], *, shared: bool) -> int:
        return self._touch("pin in all domains" if shared else "pin", [passage.id for passage in passages])

    def unpin(self, passages: Sequence[Passage], *, shared: bool) -> int:
        return self._touch("unpin in all domains" if shared else "unpin", [passage.id for passage in passages])

    def evict(self, passages: Sequence[Passage]) -> int:
        return self._touch("evict", [passage.id for passage in passages])

    def chunk(self, chunk: str, metadata: Json) -> DomainChunk:
        return DomainChunk(chunk, "")

    @property
    def captures(self) -> "FakeCaches":
        return self

    def clear(self, blobs: object) -> list[Passage]:
        return []

    def moved(self, chunks: object) -> tuple[list[Scope], dict[str, int]]:
        return [], {}

    def _touch(self, what: str, chunks: Sequence[str]) -> int:
        self.told.append((what, list(chunks)))
        return len(chunks)


class FakeControl:
    def __init__(self) -> None:
        self.keys: dict[str, Principal] = {}
        self._switch = BlendingSwitch()

    def identify(self, key: str) -> Principal | None:
        return self.keys.get(key)

    def switch(self) -> BlendingSwitch:
        return self._switch

    def set_switch(self, switch: BlendingSwitch) -> None:
        self._switch = switch


class FakeIngest:
    """`waits`: what is accepted stays waiting."""

    def __init__(self) -> None:
        self.waits = False
        self._jobs = 0

    def accept(self, tenant: Tenant, uploads: Sequence[NewUpload], *, owner: str = "") -> str:
        self._jobs += 1
        job = f"job-{owner}-{self._jobs:08x}"
        with tenant.catalog.change() as change:
            accepted = change.accept(job, uploads)
            for upload, new in zip(accepted, uploads, strict=True):
                if self.waits:
                    continue
                if new.document:
                    draft = decode_draft(new.content)
                    parts = draft.parts or (DocumentPart(draft.text, start=0),)
                    change.put([Document(new.document, parts, draft.title, draft.metadata)], collection=new.collection)
                change.advance(replace(upload, state=UploadState.READY, chunks=1, stored=1))
        return job

    def cancel(self, tenant: Tenant, job: str) -> bool:
        with tenant.catalog.change() as change:
            return bool(change.cancel(job))

    def move(self, tenant: Tenant, passages: Sequence[Passage]) -> None:
        pass

    def wake(self, tenant: str) -> None:
        pass

    def put_collection(self, tenant: Tenant, name: str, *, rules: CollectionRules, only_new: bool = False) -> bool:
        with tenant.catalog.change() as change:
            return change.put_collection(Collection(name, rules.to_json()), only_new=only_new)


class FakePipeline:
    """`fault`: raised at once, or behind the first token where `late`. `closed`: streams that were closed."""

    def __init__(self, core: "FakeCore") -> None:
        self._core = core
        self.asks: list[AnswerRequest] = []
        self.fault: Exception | None = None
        self.late = False
        self.closed = 0

    async def search(self, principal: Principal, lookup: Lookup) -> Found:
        allowed = scope(*lookup.collections, where=lookup.where, bound=principal.bound)
        reranked = lookup.top_k if lookup.rerank else 0
        query = Query(lookup.query, lookup.top_k, lookup.mode, allowed, reranked)
        return self._core.opened(principal.tenant).library.look_for(query)

    async def answer(self, ask: AnswerRequest) -> AsyncGenerator[Event]:
        self.asks.append(ask)
        try:
            if self.fault and not self.late:
                raise self.fault
            hits = (await self.search(ask.principal, ask.lookup)).hits if ask.lookup else []
            yield Retrieved(
                tuple(
                    Source(hit.passage.id, hit.passage.document, "", hit.passage.text, hit.score, hit.passage)
                    for hit in hits
                )
            )
            yield Loaded((ChunkReport("c", "ram", None, 10, 0, 0),))
            report = Report("hybrid", 0.15, (ChunkReport("c", "ram", None, 10, 2, 100),), (), {"total": 3.0})
            yield Fused(USAGE, report)
            yield Delta("Hello")
            if self.fault:
                raise self.fault
            yield Finished("stop", " world", USAGE, report)
        finally:
            self.closed += 1


class FakeCore:
    model_name = "fake"

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.settings = settings
        order = BlendOrder(settings.policy, settings.ratio)
        self.model = SimpleNamespace(order=order, window=1000, end_session=lambda tenant, name: None)
        self.tenants = SimpleNamespace(peers=Peers())
        self.lease: Callable[[], int | None] = lambda: 0
        self.metrics = Metrics()
        self.rates = Rates()
        self.places = Places(settings.max_requests, has_keys=settings.auth)
        self.link = OneTimeLink()
        self.control = FakeControl()
        self.store = MemoryStore()
        self.ingest = FakeIngest()
        self.pipeline = FakePipeline(self)
        self.handoffs = Handoffs(1 << 20)
        self.caches: dict[str, FakeCaches] = {}
        self.reason: str | None = None
        self.is_stopping: Callable[[], bool] = lambda: False
        self._folder = folder
        self._tenants: dict[str, Tenant] = {}

    def tenant(self, principal: Principal) -> Tenant:
        return self.opened(principal.tenant)

    def opened(self, name: str) -> Tenant:
        if name not in self._tenants:
            folder = self._folder / name
            folder.mkdir(exist_ok=True)
            library = Library(SqliteCatalog(folder / "catalog.sqlite"), folder, reranker=Longest())
            caches = self.caches[name] = FakeCaches()
            self._tenants[name] = Tenant(name, library, caches=cast(ChunkCaches, caches), store=self.store)
        return self._tenants[name]

    def not_ready(self) -> str | None:
        return self.reason

    def search_waits(self) -> str:
        return ""

    def close(self) -> None:
        for tenant in self._tenants.values():
            tenant.catalog.close()
        self.handoffs.close()
        self.store.close()


def as_core(core: FakeCore) -> Core:
    return cast(Core, core)


def principal(
    key_id: str, role: Role = Role.ADMIN, *, tenant: str = "default", bound: dict[str, object] | None = None
) -> Principal:
    return Principal(tenant, role, key_id, bound)
