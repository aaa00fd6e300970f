"""The functions of `operations` as methods of both clients, so that these cannot differ. Sends nothing."""

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from functools import lru_cache
from types import FunctionType
from typing import Final, Generic, ParamSpec, Protocol, TypeVar, cast, get_args, overload

from kvweave_client import operations
from kvweave_client.plans import Plan, wait_for
from kvweave_client.requests import Listing, Operation, Streaming
from kvweave_client.streams import AsyncStream, Stream

P = ParamSpec("P")
T = TypeVar("T")
Now_co = TypeVar("Now_co", covariant=True)
Later_co = TypeVar("Later_co", covariant=True)

_SELF: Final = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)


class _Blocking(Protocol):
    def close(self) -> None: ...


class _Awaited(Protocol):
    async def aclose(self) -> None: ...


class Method(Generic[P, Now_co, Later_co]):
    """A function as a method: a client that blocks answers with `Now_co`, one that is awaited with `Later_co`."""

    def __init__(self, build: Callable[P, object], *, does: str) -> None:
        self._build = build
        self._does = does  # the client's method that takes what was built
        self._name = ""

    def __set_name__(self, of: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, client: _Blocking, of: type) -> Callable[P, Now_co]: ...
    @overload
    def __get__(self, client: _Awaited, of: type) -> Callable[P, Later_co]: ...
    @overload
    def __get__(self, client: None, of: type) -> FunctionType: ...
    def __get__(self, client: object, of: type) -> object:
        return _method(self._build, getattr(of, self._does), name=f"{of.__name__}.{self._name}").__get__(client, of)


@lru_cache(None)
def _method(build: Callable[..., object], does: Callable[..., object], *, name: str) -> FunctionType:
    """What calls `does` with what `build` makes, named, described and typed for `help`."""

    def call(client: object, /, *args: object, **kwargs: object) -> object:
        return does(client, build(*args, **kwargs))

    async def awaited(client: object, /, *args: object, **kwargs: object) -> object:
        return await cast(Awaitable[object], does(client, build(*args, **kwargs)))

    made = cast(FunctionType, awaited if inspect.iscoroutinefunction(does) else call)
    signature, result = inspect.signature(build), inspect.signature(does).return_annotation
    kind = get_args(signature.return_annotation)[-1]
    made.__name__, made.__qualname__, made.__doc__ = name.rpartition(".")[2], name, build.__doc__
    vars(made)["__signature__"] = signature.replace(
        parameters=[_SELF, *signature.parameters.values()],
        return_annotation=kind if isinstance(result, TypeVar) else result[kind],
    )
    return made


def _call(build: Callable[P, Operation[T]]) -> Method[P, T, Awaitable[T]]:
    return Method(build, does="run")


def _each(build: Callable[P, Listing[T]]) -> Method[P, Iterator[T], AsyncGenerator[T]]:
    return Method(build, does="each")


def _events(build: Callable[P, Streaming[T]]) -> Method[P, Stream[T], AsyncStream[T]]:
    return Method(build, does="stream")


def _followed(build: Callable[P, Plan[T]]) -> Method[P, T, Awaitable[T]]:
    return Method(build, does="follow")


class Methods:
    """What both clients can do."""

    health = _call(operations.health)
    ready = _call(operations.ready)
    stats = _call(operations.stats)
    models = _call(operations.models)

    search = _call(operations.search)
    rerank = _call(operations.rerank)
    query = _call(operations.query)
    stream_query = _events(operations.stream_query)
    chat = _call(operations.chat)
    stream_chat = _events(operations.stream_chat)

    put_documents = _call(operations.put_documents)
    upload_files = _call(operations.upload_files)
    documents = _each(operations.documents)
    document = _call(operations.document)
    put_document = _call(operations.put_document)
    patch_document = _call(operations.patch_document)
    delete_document = _call(operations.delete_document)
    chunks = _each(operations.chunks)

    collections = _call(operations.collections)
    collection = _call(operations.collection)
    put_collection = _call(operations.put_collection)
    delete_collection = _call(operations.delete_collection)

    jobs = _each(operations.jobs)
    job = _call(operations.job)
    job_items = _each(operations.job_items)
    follow_job = _events(operations.follow_job)
    cancel_job = _call(operations.cancel_job)
    wait = _followed(wait_for)

    lookup = _each(operations.lookup)
    prefetch = _call(operations.prefetch)
    pin = _call(operations.pin)
    unpin = _call(operations.unpin)
    evict = _call(operations.evict)
    end_session = _call(operations.end_session)
    blend_switch = _call(operations.blend_switch)
    put_blend_switch = _call(operations.put_blend_switch)
