"""Keys made, revoked and identified, quotas, the switch of blending, fingerprints; refuses bad filters and limits.

Several processes may have the database open. What one of them changes, a revocation above all, binds the others at
once: whatever is kept in memory is dropped as soon as the database's version says that somebody wrote.
"""

import hmac
import json
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from retriever.catalog.connection import CatalogConnection
from retriever.documents import Json
from retriever.errors import FilterError
from retriever.filter_condition import condition, fields_of
from service.access.principal import DEFAULT_TENANT, Principal, Role, check_spelling, digest, id_of, new_key
from service.access.private import write_private
from service.errors import AccessError
from service.truth.control_file import ControlFile

NOTE_CHARS = 200

_COLUMNS = "id, tenant, role, bound, per_minute, note, created, revoked"


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """A key as listings show it, without what would let anybody in. Times are seconds since the epoch."""

    id: str
    tenant: str
    role: Role
    bound: Json | None
    per_minute: int | None
    note: str
    created: float
    revoked: float | None


@dataclass(frozen=True, slots=True)
class Quota:
    """How much a tenant may keep; None for no limit."""

    documents: int | None = None
    chunks: int | None = None

    def __post_init__(self) -> None:
        for name in ("documents", "chunks"):
            limit: int | None = getattr(self, name)
            if limit is not None and not 0 <= limit < 1 << 62:
                raise AccessError(f"a quota of {name} is a number from 0 on, or none at all, got {limit}")


@dataclass(frozen=True, slots=True)
class BlendingSwitch:
    """The operator's switch. `enabled`: is anything reused? `share` of requests that do; None: as the settings say."""

    enabled: bool = True
    share: float | None = None

    def __post_init__(self) -> None:
        if self.share is not None and not 0 <= self.share <= 1:
            raise AccessError(f"the share of requests is a number in [0, 1], got {self.share}")


@dataclass(slots=True)
class _Known:
    """What was read since the database was last written."""

    version: int
    holders: dict[str, tuple[bytes, Principal]] = field(default_factory=dict[str, tuple[bytes, Principal]])
    switch: BlendingSwitch | None = None
    bound_fields: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])


class ControlStore(Protocol):
    """The tables of one control database. Safe for threads; other processes may have them open.

    Raises Unavailable where they cannot be used.
    """

    def read(self) -> AbstractContextManager[CatalogConnection]: ...

    def change(self) -> AbstractContextManager[CatalogConnection]:
        """All that is done in the block happens, or nothing."""
        ...

    def version(self, connection: CatalogConnection) -> int:
        """What is another number as soon as somebody wrote."""
        ...

    def close(self) -> None:
        """Closes it; a second call is safe. Whatever comes after it raises Unavailable."""
        ...


class Control:
    """The control database, in the file of this path or in another store. Safe for threads."""

    def __init__(self, place: Path | ControlStore) -> None:
        self._store: ControlStore = ControlFile(place) if isinstance(place, Path) else place
        self._known = _Known(-1)

    def forget(self) -> None:
        """Let go of what was read: the database may be another one, of the same version."""
        self._known = _Known(-1)

    def create_key(
        self, tenant: str, role: Role, *, bound: Json | None = None, per_minute: int | None = None, note: str = ""
    ) -> tuple[KeyEntry, str]:
        """Makes a key. Returns its entry and the key itself, which nobody can be shown again."""
        entry, key = _new_entry(tenant, role, bound=bound, per_minute=per_minute, note=note)
        with self._store.change() as connection:
            _insert(connection, entry, key=key)
        return entry, key

    def revoke_key(self, key_id: str) -> bool:
        """Revokes a key. Returns whether it was in force until now."""
        with self._store.change() as connection:
            done = connection.execute(
                "UPDATE keys SET revoked = ? WHERE id = ? AND revoked IS NULL RETURNING id", (time.time(), key_id)
            )
            return done.fetchone() is not None

    def keys(self, tenant: str | None = None) -> list[KeyEntry]:
        """The keys of one tenant, or of all, oldest first; those that are revoked too."""
        with self._store.read() as connection:
            found = connection.execute(
                f"SELECT {_COLUMNS} FROM keys WHERE tenant = ?1 OR ?1 IS NULL ORDER BY created, id", (tenant,)
            ).fetchall()
        return [_entry(row) for row in found]

    def bound_fields(self, tenant: str) -> frozenset[str]:
        """The metadata fields that filters of the tenant's keys name, or named before they were revoked."""
        with self._store.read() as connection:
            known = self._current(connection).bound_fields
            if tenant not in known:
                found = connection.execute(
                    "SELECT bound FROM keys WHERE tenant = ? AND bound IS NOT NULL", (tenant,)
                ).fetchall()
                known[tenant] = frozenset().union(*(fields_of(json.loads(bound)) for (bound,) in found))
            return known[tenant]

    def identify(self, key: str) -> Principal | None:
        """Whose key this is; None for one that was never given, or is revoked."""
        key_id = id_of(key)
        if key_id is None:
            return None
        given = digest(key)
        with self._store.read() as connection:
            holder = self._holder(connection, key_id)
        if holder is None or not hmac.compare_digest(holder[0], given):
            return None
        return holder[1]

    def ensure_admin(self, file: Path) -> None:
        """Where no key was ever made, make an admin's, and write it into `file`, which only its owner may read.

        The file is whole before the key is in force: of a start that is cut off the next one makes another.
        """
        with self._store.change() as connection:
            if connection.execute("SELECT 1 FROM keys").fetchone():
                return
            note = f"made at the first start, in {file.name}"
            entry, key = _new_entry(DEFAULT_TENANT, Role.ADMIN, bound=None, per_minute=None, note=note[:NOTE_CHARS])
            try:
                write_private(file, f"{key}\n".encode())
            except OSError as error:
                raise AccessError(f"the admin key cannot be written into {file}: {error.strerror}") from error
            _insert(connection, entry, key=key)

    def tenants(self) -> list[str]:
        """The tenants that have, or had, a key or a quota, and the default one, which needs neither."""
        with self._store.read() as connection:
            found = connection.execute("SELECT tenant FROM keys UNION SELECT tenant FROM quotas").fetchall()
        return sorted({DEFAULT_TENANT, *(tenant for (tenant,) in found)})

    def quota(self, tenant: str) -> Quota:
        """The tenant's quota; one without limits where none was set."""
        with self._store.read() as connection:
            found = connection.execute("SELECT documents, chunks FROM quotas WHERE tenant = ?", (tenant,)).fetchone()
        return Quota(*found) if found else Quota()

    def set_quota(self, tenant: str, quota: Quota) -> None:
        """Sets a tenant's quota in the place of the one that it had."""
        check_spelling(tenant)
        with self._store.change() as connection:
            connection.execute(
                "INSERT INTO quotas VALUES (?, ?, ?) "
                "ON CONFLICT (tenant) DO UPDATE SET documents = excluded.documents, chunks = excluded.chunks",
                (tenant, quota.documents, quota.chunks),
            )  # fmt: skip

    def switch(self) -> BlendingSwitch:
        """The operator's switch as it stands now, set by whatever process."""
        with self._store.read() as connection:
            known = self._current(connection)
            if known.switch is None:
                found = connection.execute("SELECT enabled, share FROM switch").fetchone()
                known.switch = BlendingSwitch(bool(found[0]), found[1]) if found else BlendingSwitch()
            return known.switch

    def set_switch(self, switch: BlendingSwitch) -> None:
        """Sets the operator's switch for all processes, and for good: it outlasts a restart."""
        with self._store.change() as connection:
            connection.execute(
                "INSERT INTO switch VALUES (0, ?, ?) "
                "ON CONFLICT (row) DO UPDATE SET enabled = excluded.enabled, share = excluded.share",
                (int(switch.enabled), switch.share),
            )

    def remember_fingerprint(self, digest: str, fields: Mapping[str, str]) -> None:
        """Keeps what a model's fingerprint was made of, to tell another one apart from it by name.

        One that is there is not written again: each start asks, and a question goes on where the disk is full.
        """
        if self.fingerprints().get(digest) == dict(fields):
            return
        with self._store.change() as connection:
            connection.execute(
                "INSERT INTO fingerprints VALUES (?, ?) ON CONFLICT (digest) DO UPDATE SET fields = excluded.fields",
                (digest, json.dumps(dict(fields))),
            )

    def fingerprints(self) -> dict[str, dict[str, str]]:
        """The fields of every fingerprint that was remembered, by its digest."""
        with self._store.read() as connection:
            found = connection.execute("SELECT digest, fields FROM fingerprints ORDER BY digest").fetchall()
        return {name: json.loads(fields) for name, fields in found}

    def close(self) -> None:
        """Closes the database; a second call is safe. Whatever comes after it raises Unavailable."""
        self._store.close()

    def _current(self, connection: CatalogConnection) -> _Known:
        """What is known of the present version. What is read later may be newer than that, never older."""
        version, known = self._store.version(connection), self._known
        if version != known.version:
            self._known = known = _Known(version)
        return known

    def _holder(self, connection: CatalogConnection, key_id: str) -> tuple[bytes, Principal] | None:
        known = self._current(connection)
        if key_id not in known.holders:
            found = connection.execute(
                f"SELECT digest, {_COLUMNS} FROM keys WHERE id = ? AND revoked IS NULL", (key_id,)
            ).fetchone()
            if found is None:  # not kept: whoever guesses must not fill the memory
                return None
            entry = _entry(found[1:])
            holder = Principal(entry.tenant, entry.role, entry.id, entry.bound, entry.per_minute)
            known.holders[key_id] = found[0], holder
        return known.holders[key_id]


def _new_entry(
    tenant: str, role: Role, *, bound: Json | None, per_minute: int | None, note: str
) -> tuple[KeyEntry, str]:
    check_spelling(tenant)
    if per_minute is not None and not 1 <= per_minute <= 1_000_000:
        raise AccessError(f"a key may ask from 1 to 1,000,000 times a minute, or without a limit, got {per_minute}")
    if len(note) > NOTE_CHARS or not note.isprintable():
        raise AccessError(f"a note is one line of {NOTE_CHARS} characters at most, got {note[:40]!r}")
    key_id, key = new_key()
    return KeyEntry(key_id, tenant, role, _checked(bound), per_minute, note, time.time(), None), key


def _checked(bound: Json | None) -> Json | None:
    """The key's filter as it will be read again. No holder can widen it, so an empty one raises AccessError."""
    if bound is None:
        return None
    if not bound:
        raise AccessError("the key's filter is empty and would bind nothing: leave it out, or name a field")
    try:
        condition(bound)
        return json.loads(json.dumps(bound, allow_nan=False))
    except FilterError as error:
        raise AccessError(f"the key's filter: {error}") from error
    except (TypeError, ValueError) as error:
        raise AccessError(f"the key's filter cannot be written as JSON: {error}") from error


def _insert(connection: CatalogConnection, entry: KeyEntry, *, key: str) -> None:
    bound = None if entry.bound is None else json.dumps(entry.bound)
    row = (entry.id, entry.tenant, entry.role.label, bound, entry.per_minute, entry.note, entry.created, entry.revoked)
    connection.execute(
        f"INSERT INTO keys (digest, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (digest(key), *row)
    )  # fmt: skip


def _entry(row: tuple[str, str, str, str | None, int | None, str, float, float | None]) -> KeyEntry:
    """The key's entry, out of the columns of its row in their order."""
    key_id, tenant, role, bound, per_minute, note, created, revoked = row
    filtered = None if bound is None else json.loads(bound)
    return KeyEntry(key_id, tenant, Role.parse(role), filtered, per_minute, note, created, revoked)
