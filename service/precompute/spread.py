"""Chunks captured by actors on the nodes of a Ray cluster; their blobs go from there to the store. Knows no documents.

Ray finds its cluster by RAY_ADDRESS, or the one that runs on this machine; it begins none, for that would listen on all
interfaces. What a lost node had taken is computed elsewhere.
"""

import logging
import pickle
import socket
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import cast

import ray
import ray.data
import torch
import transformers
from pydantic import SecretStr
from ray._private.services import canonicalize_bootstrap_address
from ray.data.exceptions import ExecutionTimeoutError
from ray.exceptions import RayError
from ray.util.annotations import RayDeprecationWarning

from blend.errors import BlendError
from service.composition import compose_served, compose_store
from service.errors import Invalid, ServiceError, Unavailable
from service.ingest.capturing import Capturing, Item, Outcome, Purpose, batches
from service.model import Ids, ServedModel
from service.precompute.work import Capture
from service.settings import Settings, SettingsError
from service.telemetry.logs import fields
from service.trust import MOST, retired
from store.errors import StoreError

log = logging.getLogger(__name__)

Row = dict[str, object]

WINDOW = 1000  # batches of an actor that wait in memory: its model is loaded once for them
WIDEST = 8000  # of all actors
ROUNDS = 5  # in a row that bring nothing
PAUSE_S = 5.0
ANSWER_S = 10.0
DEATHS = 3  # of actors one after another, while they load the model
AT_ONCE = 2  # batches of an actor: one is computed while the one before is packed and stored


@dataclass(frozen=True, slots=True)
class Shape:
    """How many actors there are, and what each of them takes of its node."""

    actors: int
    cpus: int
    gpus: int


@dataclass(frozen=True, slots=True)
class Order:
    """What an actor is to be: all of them write what the driver would, or nothing."""

    settings: Settings
    prefix: Ids
    fingerprint: str
    versions: Mapping[str, str]


def spread(settings: Settings, actors: int) -> Capture:
    """Over the cluster; `actors` 0 is one a GPU, or one a node where there is none."""
    kind = settings.store.split("|")[-1].removeprefix("tiered:").strip().partition(":")[0]
    if kind == "mem":
        raise _of_one_machine(kind)
    _connect()
    hosts = {cast(str, node["NodeManagerHostname"]) for node in _living()}
    if kind == "lmdb" and hosts != {socket.gethostname()}:
        raise _of_one_machine(kind)
    lean = _for_actors(settings)

    def capture(prefix: Ids, items: Iterable[Item]) -> Iterator[Outcome]:
        coming = iter(items)
        for first in coming:  # they all are of one tenant, model and codec
            order = Order(lean, prefix, first.key.fingerprint, _versions())
            yield from _rounds(order, chain([first], coming), actors=actors)

    return capture


def shape(nodes: Sequence[Mapping[str, float]], device: str, *, actors: int) -> Shape:
    """On nodes with these resources. Each actor fits on any node that is of use: whichever is lost, others go on."""
    gpus = 0 if device == "cpu" else int(sum(node.get("GPU", 0) for node in nodes))
    if gpus:
        return Shape(actors or gpus, cpus=1, gpus=1)
    room = [int(node["CPU"]) for node in nodes if node.get("CPU", 0) >= 1] or [1]
    count = actors or len(room)
    fits = (each for each in range(min(room), 1, -1) if sum(cpus // each for cpus in room) >= count)
    return Shape(count, cpus=next(fits, 1), gpus=0)


def _of_one_machine(kind: str) -> Invalid:
    """What other machines write there, nobody would find."""
    return Invalid(f"--executor ray: {kind}:// is of one machine alone: name a store on s3://")


def _connect() -> None:
    """Quietly: what Ray and its Data have to say goes to their own files."""
    try:
        address = canonicalize_bootstrap_address(None)  # pyright: ignore[reportArgumentType] (None is what it takes)
        if address is None:  # one that Ray began here would listen on all interfaces
            raise Invalid("--executor ray: no cluster is named: set RAY_ADDRESS; `ray start --head` begins one")
        _greet(address)
        ray.init(  # pyright: ignore[reportUnknownMemberType]
            ignore_reinit_error=True, log_to_driver=False, include_dashboard=False, logging_level=logging.ERROR
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise Unavailable(
            f"--executor ray: {_line(error)}: RAY_ADDRESS names the cluster's own HOST:PORT; "
            "where it asks for a token, set RAY_AUTH_MODE=token"
        ) from None
    logging.getLogger("ray").setLevel(logging.ERROR)
    for handler in logging.getLogger("ray.data").handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setLevel(logging.CRITICAL)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.max_errored_blocks = -1  # what is missing is asked for again
    context.max_consecutive_actor_init_deaths = DEATHS


def _greet(address: str) -> None:
    """Ray itself waits minutes for a cluster that does not answer. Raises OSError."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_S).close()
    except OSError as error:
        raise ConnectionError(f"{address} does not answer ({error})") from None


def _living() -> list[Row]:
    return [node for node in cast("list[Row]", ray.nodes()) if node["Alive"]]


def _for_actors(settings: Settings) -> Settings:
    """Without what they do not need, keys above all, and with names that mean the same on each node."""
    unused = {
        "embedder": "",
        "embedder_key": SecretStr(""),
        "reranker": "",
        "reranker_key": SecretStr(""),
        "traces": "",
    }
    local = settings.model != "builtin" and Path(settings.model).is_dir()
    model = str(Path(settings.model).absolute()) if local else settings.model
    device = settings.device.partition(":")[0]  # an actor sees one GPU, whichever Ray gives it
    return settings.model_copy(update={**unused, "model": model, "device": device})


def _versions() -> dict[str, str]:
    """Of what computes. Other builds of one version, such as +cpu, are for other devices."""
    return {each.__name__: each.__version__.partition("+")[0] for each in (torch, transformers)}


def _line(error: BaseException) -> str:
    """The end of what it says."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()


def _rounds(order: Order, items: Iterable[Item], *, actors: int) -> Iterator[Outcome]:
    """One after another: what comes next is read while this is computed, and what was lost goes with it."""
    coming = ((number, pickle.dumps(tuple(batch))) for number, batch in enumerate(batches(items)))
    left: dict[int, bytes] = {}
    form, fruitless = _shape_now(order, actors), 0
    while True:
        now = _shape_now(order, actors)
        form = now if now.gpus == form.gpus else form  # where all GPUs are lost, none takes the place of one
        left |= islice(coming, max(0, min(WINDOW * form.actors, WIDEST) - len(left)))
        if not left:
            return
        why, came, after = "no actor came to an end", 0, dict[int, bytes]()
        try:
            for number, outcomes in _round(order, left, form=form):
                del left[number]
                came += 1
                yield from outcomes
                after |= islice(coming, 1)
        except RayError as error:
            why = _line(error)
        if left:
            log.warning("a node was lost, or an actor failed: going on with the others", extra=fields(reason=why))
        left |= after
        fruitless = 0 if came else fruitless + 1
        if fruitless == ROUNDS:
            raise Unavailable(f"no actor could compute anything ({why}): look at the cluster's nodes, and Ray's logs")
        if fruitless:
            time.sleep(PAUSE_S)  # until the cluster knows which nodes are lost


def _shape_now(order: Order, actors: int) -> Shape:
    nodes = [cast("dict[str, float]", node["Resources"]) for node in _living()]
    return shape(nodes, order.settings.device, actors=actors)


def _round(order: Order, left: Mapping[int, bytes], *, form: Shape) -> Iterator[tuple[int, list[Outcome]]]:
    """What comes of one go over all that is left; a lost node's share is missing."""
    rows = [{"number": number, "batch": batch} for number, batch in left.items()]
    data = cast(
        ray.data.Dataset,
        ray.data.from_items(rows, override_num_blocks=len(rows)),  # pyright: ignore[reportUnknownMemberType]
    )
    pool = ray.data.ActorPoolStrategy(
        size=min(form.actors, len(rows)), max_concurrent_calls_per_actor=AT_ONCE, enable_true_multi_threading=True
    )
    with warnings.catch_warnings(action="ignore", category=RayDeprecationWarning):  # of restarts: no other way is there
        done = data.map(  # pyright: ignore[reportUnknownMemberType]
            _Actor,  # pyright: ignore[reportArgumentType] (its type knows functions alone)
            fn_constructor_args=(order,),
            num_gpus=form.gpus,
            num_cpus=form.cpus,
            compute=pool,
            max_restarts=0,  # it would wait for a node with room, with all that it had taken
            max_task_retries=0,
        )
    try:
        for row in cast("Iterable[Row]", done.iter_rows()):
            if row["fault"]:
                raise Unavailable(str(row["fault"]))
            yield cast(int, row["number"]), cast("list[Outcome]", pickle.loads(cast(bytes, row["outcomes"])))
    except ExecutionTimeoutError:
        raise Unavailable("nothing came from the cluster for very long: look at its nodes, and run again") from None


class _Actor:
    """On a node, with the model loaded once. Each row that comes back has outcomes, or the fault that ends the run."""

    def __init__(self, order: Order) -> None:
        self._prefix = order.prefix
        self._fault = ""
        try:
            self._model = compose_served(order.settings)
            self._store = compose_store(order.settings)
        except (BlendError, ServiceError, SettingsError, StoreError, ImportError, OSError, RuntimeError) as error:
            self._fault = _told(error)
        else:
            self._fault = _other(self._model, order)

    def __call__(self, row: Row) -> Row:
        outcomes: list[Outcome] = []
        fault = self._fault
        if not fault:
            items = cast("tuple[Item, ...]", pickle.loads(cast(bytes, row["batch"])))
            capturing = Capturing(self._model, self._store, purpose=Purpose.JOB)
            try:
                outcomes = list(capturing.run(self._prefix, items))
            except (BlendError, StoreError) as error:
                fault = _told(error)
        return {"number": row["number"], "outcomes": pickle.dumps(outcomes), "fault": fault}


def _told(error: BaseException) -> str:
    return f"on node {socket.gethostname()}: {' '.join(str(error).split()) or type(error).__name__}"


def _other(model: ServedModel, order: Order) -> str:
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
