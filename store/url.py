"""Opens the store that a URL names, or refuses it: options, budgets, tiers, timeouts and retries of bucket clients.

    mem://?budget=4GB
    lmdb:///var/lib/kvweave?budget=200GB&tenant_budget=20GB
    s3://bucket/prefix?endpoint=http://127.0.0.1:9000     gs://bucket/prefix     az://container/prefix
    file:///mnt/share/kvweave                             a folder, on a network file system too
    tiered:mem://?budget=4GB|lmdb:///cache?budget=200GB|s3://bucket/prefix

Sizes are bytes, or numbers with kB, MB, GB, TB, KiB, MiB, GiB, TiB. Credentials come from where each cloud's own tools
look for them; `access_key` and `secret_key` in the URL are for test servers.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, LocalStore, S3Store
from obstore.store import ObjectStore as Bucket

from store.blob_store import BlobStore
from store.codec.unpacked import Allocate, allocate
from store.errors import StoreDenied, UrlError
from store.lmdb.lmdb_store import LmdbStore
from store.objects.object_client import ObjectClient
from store.objects.object_store import ObjectBlobStore
from store.size import parse_size
from store.tiers.budget import TierBudget
from store.tiers.memory_store import MemoryCache, MemoryStore
from store.tiers.tiered_store import TieredStore

if TYPE_CHECKING:  # these are types alone, the library has no such names when it runs
    from obstore.store import AzureConfig, ClientConfig, RetryConfig, S3Config

_BUDGETS = frozenset({"budget", "tenant_budget"})
_REMOTE = _BUDGETS | {"timeout"}
_S3 = _REMOTE | {"endpoint", "region", "access_key", "secret_key", "session_token", "virtual_hosted"}
_KNOWN = {
    "mem": _BUDGETS,
    "lmdb": _BUDGETS,
    "file": _BUDGETS,
    "s3": _S3,
    "gs": _REMOTE,
    "az": _REMOTE | {"account", "endpoint"},
}
_SYNC_S = 2.0  # how long a cache may serve what another machine deleted; asking costs a request


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """A parsed store URL; `label` is what errors may show: no credentials."""

    parts: SplitResult
    options: Mapping[str, str]
    label: str

    def size(self, name: str) -> int | None:
        """An option in bytes."""
        return None if name not in self.options else parse_size(self.options[name], f"{self.label}: {name}")

    def seconds(self, name: str, default: float) -> timedelta:
        """An option in seconds."""
        text = self.options.get(name, str(default))
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if not 0 < value < float("inf"):
            raise UrlError(f"{self.label}: {name} must be a positive number of seconds, got {text!r}")
        return timedelta(seconds=value)


def open_store(url: str, allocate: Allocate = allocate) -> BlobStore:
    """The store that a URL names; a wrong URL is a `UrlError` with the remedy. `allocate`: of `mem://` above others."""
    if not url.startswith("tiered:"):
        return _open_tier(url, lowest=True)
    urls = url.removeprefix("tiered:").split("|")
    opened: list[BlobStore] = []
    with ExitStack() as undo:
        for part in urls[:-1]:
            opened.append(undo.enter_context(_open_tier(part.strip(), lowest=False, allocate=allocate)))
        opened.append(undo.enter_context(_open_tier(urls[-1].strip(), lowest=True)))
        undo.pop_all()
    near = isinstance(opened[-1], LmdbStore | MemoryStore)
    return TieredStore(opened, sync_s=0.0 if near else _SYNC_S)


def open_folder(url: str) -> ObjectClient:
    """What lies below an `s3://`, `gs://` or `az://` URL, to be listed and read. A wrong URL is a `UrlError`."""
    parsed = _split(url)
    return ObjectClient(_bucket(parsed), parsed.label)


def place_of(url: str) -> str:
    """Where a store's lowest tier is, comparable between machines: a local path includes the machine's name."""
    lowest = _split(url.removeprefix("tiered:").split("|")[-1].strip())
    own = {"mem": f" of process {os.getpid()}", "lmdb": ""}.get(lowest.parts.scheme)
    return lowest.label if own is None else f"{lowest.label}{own} on {socket.gethostname()}"


def _open_tier(text: str, *, lowest: bool, allocate: Allocate = allocate) -> BlobStore:
    """One tier; `allocate`: of memory above others."""
    url = _split(text)
    budget = TierBudget(url.size("budget"), url.size("tenant_budget"), lowest=lowest)
    scheme = url.parts.scheme
    if scheme == "mem":
        return MemoryStore(budget) if lowest else MemoryCache(budget, allocate)
    if scheme == "lmdb":
        return LmdbStore(_path(url), budget)
    if scheme == "file":
        folder = _path(url)
        return ObjectBlobStore(ObjectClient(_folder(folder), url.label, folder=folder), budget)
    return ObjectBlobStore(ObjectClient(_bucket(url), url.label), budget)


def _split(text: str) -> StoreUrl:
    parts = urlsplit(text)
    label = f"{parts.scheme}://{parts.netloc}{parts.path}"
    if parts.scheme not in _KNOWN:
        raise UrlError(
            f"{label!r} names no store: a URL begins with one of {', '.join(f'{s}://' for s in _KNOWN)} or tiered:"
        )
    if "@" in parts.netloc:
        raise UrlError(
            f"{parts.scheme}://: credentials do not go before '@': use the environment, or access_key and secret_key"
        )
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    for name, _ in pairs:
        if name not in _KNOWN[parts.scheme]:
            raise UrlError(f"{label} has no option {name!r}: there are {', '.join(sorted(_KNOWN[parts.scheme]))}")
    if len(dict(pairs)) != len(pairs):
        raise UrlError(f"{label} gives an option twice: {', '.join(name for name, _ in pairs)}")
    return StoreUrl(parts, dict(pairs), label)


def _path(url: StoreUrl) -> Path:
    if url.parts.netloc or not url.parts.path.startswith("/"):
        raise UrlError(
            f"{url.label}: write three slashes and an absolute path, for example {url.parts.scheme}:///var/lib/kvweave"
        )
    return Path(unquote(url.parts.path))


def _folder(path: Path) -> Bucket:
    try:
        path.mkdir(parents=True, exist_ok=True)
        return LocalStore(path, automatic_cleanup=True)
    except (OSError, BaseError) as error:
        raise StoreDenied(f"{path} cannot be used: {error}; check its owner and mode, or name another folder") from None


def _bucket(url: StoreUrl) -> Bucket:
    if not url.parts.netloc:
        raise UrlError(f"{url.label} names no bucket: write for example {url.parts.scheme}://bucket/prefix")
    patience = url.seconds("timeout", 10.0)
    client: ClientConfig = {
        "connect_timeout": patience,
        "read_timeout": patience,  # ends a stall
        "timeout": 12 * patience,
        "allow_http": True,
    }
    retry: RetryConfig = {
        "max_retries": 3,
        "retry_timeout": 2 * patience,
        "backoff": {"init_backoff": timedelta(milliseconds=50)},
    }
    name, prefix = url.parts.netloc, unquote(url.parts.path.strip("/")) or None
    try:
        if url.parts.scheme == "s3":
            return S3Store(name, prefix=prefix, client_options=client, retry_config=retry, config=_s3_config(url))
        if url.parts.scheme == "gs":
            return GCSStore(name, prefix=prefix, client_options=client, retry_config=retry)
        return AzureStore(name, prefix=prefix, client_options=client, retry_config=retry, config=_azure_config(url))
    except (BaseError, ValueError) as error:
        raise UrlError(f"{url.label}: {error}") from None


def _s3_config(url: StoreUrl) -> S3Config:
    config: S3Config = {"virtual_hosted_style_request": url.options.get("virtual_hosted", "0") == "1"}
    if "endpoint" in url.options:
        config["endpoint"] = url.options["endpoint"]
        config["region"] = "us-east-1"
    if "region" in url.options:
        config["region"] = url.options["region"]
    if "access_key" in url.options:
        config["access_key_id"] = url.options["access_key"]
    if "secret_key" in url.options:
        config["secret_access_key"] = url.options["secret_key"]
    if "session_token" in url.options:
        config["session_token"] = url.options["session_token"]
    return config


def _azure_config(url: StoreUrl) -> AzureConfig:
    config: AzureConfig = {}
    if "account" in url.options:
        config["account_name"] = url.options["account"]
    if "endpoint" in url.options:
        config["endpoint"] = url.options["endpoint"]
    return config
