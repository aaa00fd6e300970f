# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Chunks captured by actors of a Ray cluster: how many, CPUs or GPUs each; lost ones replaced, other models refused.

Ray finds its cluster by RAY_ADDRESS, or the one that runs on this machine; it begins none, for that would listen on all
interfaces. What a lost node had taken is computed elsewhere.
"""

import logging
import socket
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import cast

import ray
import torch
import transformers
from pydantic import SecretStr
from ray.actor import ActorProxy
from ray.exceptions import RayError

from blend.errors import BlendError
from service.app.composition import compose_served, compose_store
from service.documents.checked_model import MOST, retired
from service.documents.chunk_capture import CaptureItem, CaptureOutcome, ChunkCapture, Purpose, batches
from service.documents.precompute import Capture
from service.errors import Invalid, ServiceError, Unavailable
from service.model.served_model import Ids, ServedModel
from service.settings import BUILTIN, NONE, Settings, SettingsError, ray_address
from service.telemetry.logs import fields
from store.errors import StoreError

log = logging.getLogger(__name__)

Batch = Sequence[CaptureItem]
Flights = dict[ray.ObjectRef[list[CaptureOutcome] | str], tuple[ActorProxy["_Actor"], Batch]]
Resources = Mapping[str, float]

AUTO = "auto"  # for Ray: the cluster that runs on this machine, or an error
LOSSES = 5  # of each actor's place, while no batch is computed anywhere
ANSWER_S = 10.0
IDLE_S = 1800.0  # without a word from any actor
AT_ONCE = 2  # batches of an actor: one is computed while the one before is packed and stored


@dataclass(frozen=True, slots=True)
class ActorShape:
    """How many actors there are, and what each of them takes of its node."""

    actors: int
    cpus: int
    gpus: int


@dataclass(frozen=True, slots=True)
class ActorOrder:
    """What an actor is to be: all of them write what the driver would, or nothing."""

    settings: Settings
    prefix: Ids
    fingerprint: str
    versions: Mapping[str, str]


def ray_capture(settings: Settings, actors: int) -> Capture:
    """A capture over the cluster; `actors` 0 is one a GPU, or one a node where there is none."""
    kind = settings.store.split("|")[-1].removeprefix("tiered:").strip().partition(":")[0]
    if kind == "mem":
        raise _of_one_machine(kind)
    _connect()
    hosts = {cast(str, node["NodeManagerHostname"]) for node in _living()}
    if kind == "lmdb" and hosts != {socket.gethostname()}:
        raise _of_one_machine(kind)
    lean = _for_actors(settings)

    def capture(prefix: Ids, items: Iterable[CaptureItem]) -> Iterator[CaptureOutcome]:
        coming = iter(items)
        for first in coming:  # they all are of one tenant, model and codec
            order = ActorOrder(lean, prefix, first.key.origin, _versions())
            form = shape([cast("Resources", node["Resources"]) for node in _living()], lean.device, actors=actors)
            yield from _computed(order, chain([first], coming), form=form)

    return capture


def shape(nodes: Sequence[Resources], device: str, *, actors: int) -> ActorShape:
    """The actors on nodes with these resources. Each fits on any useful node: whichever is lost, others go on."""
    gpus = 0 if device == "cpu" else int(sum(node.get("GPU", 0) for node in nodes))
    if gpus:
        return ActorShape(actors or gpus, cpus=1, gpus=1)
    room = [int(node["CPU"]) for node in nodes if node.get("CPU", 0) >= 1] or [1]
    count = actors or len(room)
    fits = (each for each in range(min(room), 1, -1) if sum(cpus // each for cpus in room) >= count)
    return ActorShape(count, cpus=next(fits, 1), gpus=0)


def _of_one_machine(kind: str) -> Invalid:
    """What other machines write there, nobody would find."""
    return Invalid(f"--executor ray: {kind}:// is of one machine alone: name a store on s3://")


def _connect() -> None:
    """Quietly: what Ray has to say goes to its own files."""
    address = ray_address() or AUTO
    try:
        if address != AUTO:  # Ray itself waits minutes for a cluster that does not answer
            host, _, port = address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_S).close()
        ray.init(
            address, ignore_reinit_error=True, log_to_driver=False, include_dashboard=False, logging_level=logging.ERROR
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise Unavailable(
            f"--executor ray: {address} does not answer ({_line(error)}): `ray start --head` begins a cluster, and "
            "RAY_ADDRESS names the cluster's own HOST:PORT; where it asks for a token, set RAY_AUTH_MODE=token"
        ) from None


def _living() -> list[dict[str, object]]:
    return [node for node in cast("list[dict[str, object]]", ray.nodes()) if node["Alive"]]


def _for_actors(settings: Settings) -> Settings:
    """The settings without what actors do not need, keys above all, and with names that mean the same on each node."""
    unused = {
        "embedder": NONE,
        "embedder_key": SecretStr(""),
        "reranker": "",
        "reranker_key": SecretStr(""),
        "traces": "",
    }
    local = settings.model != BUILTIN and Path(settings.model).is_dir()
    model = str(Path(settings.model).absolute()) if local else settings.model
    device = settings.device.partition(":")[0]  # an actor sees one GPU, whichever Ray gives it
    return settings.model_copy(update={**unused, "model": model, "device": device})


def _versions() -> dict[str, str]:
    """The versions of what computes. Other builds of one version, such as +cpu, are for other devices."""
    return {each.__name__: each.__version__.partition("+")[0] for each in (torch, transformers)}


def _line(error: BaseException) -> str:
    """The end of what it says."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()


def _computed(order: ActorOrder, items: Iterable[CaptureItem], *, form: ActorShape) -> Iterator[CaptureOutcome]:
    """The outcomes as they come. What a lost actor had, others do; another takes its place."""
    coming = batches(items)
    left = deque(islice(coming, form.actors))
    flights: Flights = {}
    for _ in left:
        flights |= _hired(order, form)
    lost = 0  # actors since the last batch that was computed
    while left or any(batch for _, batch in flights.values()):
        done, _ = ray.wait(list(flights), timeout=IDLE_S)
        if not done:
            raise Unavailable("nothing came from the cluster for very long: look at its nodes, and run again")
        actor, batch = flights.pop(done[0])
        try:
            outcomes = ray.get(done[0])
        except RayError as error:
            left += [batch] if batch else []
            if all(other != actor for other, _ in flights.values()):
                lost += 1
                log.warning("a node was lost, or an actor failed: going on", extra=fields(reason=_line(error)))
                if lost == LOSSES * form.actors:
                    raise Unavailable(f"no actor could compute anything ({_line(error)}): look at Ray's logs") from None
                flights |= _hired(order, form)
            continue
        if isinstance(outcomes, str):
            raise Unavailable(outcomes)
        lost = 0 if batch else lost
        left += islice(coming, max(0, form.actors - len(left)))
        if left:
            batch = left.popleft()
            flights[actor.compute.remote(batch)] = actor, batch
        yield from outcomes


def _hired(order: ActorOrder, form: ActorShape) -> Flights:
    """The first flights of a new actor, empty batches: they end when its model is loaded. It lives while it has one."""
    kind = ray.remote(_Actor).options(
        num_cpus=form.cpus,
        num_gpus=form.gpus,
        max_restarts=0,  # it would wait for a node with room, with all that it had taken
        max_task_retries=0,
        max_concurrency=AT_ONCE,
    )
    actor = kind.remote(order)
    return {actor.compute.remote(()): (actor, ()) for _ in range(AT_ONCE)}


class _Actor:
    """What runs on a node, its model loaded once. A batch comes back as outcomes, or as the fault that ends the run."""

    def __init__(self, order: ActorOrder) -> None:
        try:
            self._model = compose_served(order.settings)
            self._store = compose_store(order.settings)
        except (BlendError, ServiceError, SettingsError, StoreError, ImportError, OSError, RuntimeError) as error:
            self._fault = _failure(error)
        else:
            self._fault = _other(self._model, order)

    @ray.method
    def compute(self, batch: Batch) -> list[CaptureOutcome] | str:
        if self._fault:
            return self._fault
        try:
            return list(ChunkCapture(self._model, self._store, purpose=Purpose.JOB).run(batch))
        except (BlendError, StoreError) as error:
            return _failure(error)


def _failure(error: BaseException) -> str:
    return f"on node {socket.gethostname()}: {' '.join(str(error).split()) or type(error).__name__}"


def _other(model: ServedModel, order: ActorOrder) -> str:
    """Why what this node computes may not be stored as the driver's; empty where it may."""
    for name, version in _versions().items():
        if version != order.versions[name]:
            return (
                f"node {socket.gethostname()} has {name} {version}, and {order.versions[name]} is where the run was "
                f"begun: install the same on both"
            )
    own = model.fingerprint.behind(order.prefix)
    others = (retired(own, number) for number in range(1, MOST))
    if order.fingerprint in {each.digest for each in (own, *others)}:
        return ""
    return (
        f"node {socket.gethostname()} has another model as {order.settings.model!r} than where the run was begun: "
        f"copy the same checkpoint to all nodes"
    )
