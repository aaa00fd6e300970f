"""Stores against a dict: whatever is asked in whatever order, a store without a budget answers as the dict does.

With a budget it may forget, but nothing that is pinned or, in the lowest tier, precomputed; and it never makes up.
"""

import shutil
import tempfile
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from store.blob import Blob
from store.blob_store import Put
from store.key import CacheKey, Scope
from store.reader import BlobReader
from store.url import open_store
from tests.store.samples import blob

TENANTS: tuple[str, ...] = ("acme", "Other")
CHUNKS = ("1", "10", "x/y")
CODECS = ("q4", "q2")
BLOBS = {
    (tenant, chunk, codec, seed, precomputed): blob(
        chunk, tenant=tenant, codec=codec, seed=seed, precomputed=precomputed
    )
    for tenant in TENANTS
    for chunk in CHUNKS
    for codec in CODECS
    for seed in (1, 2)
    for precomputed in (True, False)
}
SCOPES = [Scope(t) for t in TENANTS] + [Scope(t, f"chunk-{c}") for t in TENANTS for c in CHUNKS]
SCOPES += [Scope(t, f"chunk-{c}", "fp") for t in TENANTS for c in CHUNKS]
CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
SHORT = settings(max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=CHECKS)
LONG = settings(SHORT, max_examples=600, stateful_step_count=80)

names = st.sampled_from(sorted(BLOBS))
scopes = st.sampled_from(SCOPES)


@dataclass(frozen=True, slots=True)
class Known:
    """What the model holds under a key."""

    data: bytes
    precomputed: bool
    pinned: bool = False


class Model(RuleBasedStateMachine):
    """Rules that a dict can follow. `url` is filled with a fresh folder for each run."""

    url: str
    forgets = False

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp()
        self.store = open_store(self.url.format(self.folder))
        self.held: dict[CacheKey, Known] = {}
        self.epochs: dict[str, int] = dict.fromkeys(TENANTS, 0)
        self.travelling: list[Blob] = []

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)

    def _made(self, name: tuple[str, str, str, int, bool], epoch: int) -> Blob:
        made = BLOBS[name]
        if not epoch:
            return made
        tenant, chunk, codec, seed, precomputed = name
        return blob(chunk, tenant=tenant, codec=codec, seed=seed, precomputed=precomputed, epoch=epoch)

    def _settle(self, outcome: Put, made: Blob) -> None:
        if outcome is Put.STORED:
            old = self.held.get(made.head.key)
            precomputed = made.head.terms.precomputed or (old is not None and old.precomputed)
            self.held[made.head.key] = Known(bytes(made), precomputed, old is not None and old.pinned)
        elif outcome is Put.OVER_BUDGET:
            assert self.forgets
            if not self._there(made.head.key):
                self.held.pop(made.head.key, None)

    def _there(self, key: CacheKey) -> bool:
        return isinstance(self.store.open(key), BlobReader)

    @rule(name=names)
    def put(self, name: tuple[str, str, str, int, bool]) -> None:
        made = self._made(name, self.epochs[name[0]])
        old = self.held.get(made.head.key)
        outcome = self.store.put(made)
        assert outcome is not Put.DELETED
        if outcome is Put.PRESENT:
            assert old is not None
            self.held[made.head.key] = replace(old, precomputed=old.precomputed or made.head.terms.precomputed)
        else:
            assert self.forgets or old is None
        self._settle(outcome, made)

    @rule(name=names)
    def replace(self, name: tuple[str, str, str, int, bool]) -> None:
        made = self._made(name, self.epochs[name[0]])
        outcome = self.store.replace(made)
        assert outcome is Put.STORED or self.forgets
        self._settle(outcome, made)

    @rule(name=names)
    def compute(self, name: tuple[str, str, str, int, bool]) -> None:
        """Begin a blob now that is put later."""
        self.travelling.append(self._made(name, self.epochs[name[0]]))

    @precondition(lambda self: self.travelling)
    @rule()
    def arrive(self) -> None:
        made = self.travelling.pop(0)
        key, epoch = made.head.key, made.head.terms.epoch
        dead = any(deletion.kills(key, epoch) for deletion in self.store.deletions(key.tenant))
        outcome = self.store.put(made)
        assert (outcome is Put.DELETED) == dead
        if outcome is Put.PRESENT:
            old = self.held[key]
            self.held[key] = replace(old, precomputed=old.precomputed or made.head.terms.precomputed)
        self._settle(outcome, made)

    @rule(name=names)
    def discard(self, name: tuple[str, str, str, int, bool]) -> None:
        key = BLOBS[name].head.key
        there = self.held.pop(key, None) is not None
        assert self.store.discard(key) == there or self.forgets

    @rule(scope=scopes)
    def delete(self, scope: Scope) -> None:
        self.epochs[scope.tenant] += 1
        assert self.store.delete(scope) == self.epochs[scope.tenant] == self.store.epoch(scope.tenant)
        self.held = {key: known for key, known in self.held.items() if key not in scope}

    @rule(scope=scopes)
    def pin(self, scope: Scope) -> None:
        self._mark(scope, pinned=True)

    @rule(scope=scopes)
    def unpin(self, scope: Scope) -> None:
        self._mark(scope, pinned=False)

    def _mark(self, scope: Scope, *, pinned: bool) -> None:
        self._forget_evicted()
        count = self.store.pin(scope) if pinned else self.store.unpin(scope)
        marked = [key for key in self.held if key in scope]
        assert count == len(marked)
        for key in marked:
            self.held[key] = replace(self.held[key], pinned=pinned)

    @rule()
    def flush(self) -> None:
        self.store.flush()

    def _forget_evicted(self) -> None:
        if self.forgets:
            there = {row.key for row in self.store.entries()}
            for key in [key for key in self.held if key not in there]:
                assert not (self.held[key].pinned or self.held[key].precomputed), f"{key} was evicted"
                del self.held[key]

    @invariant()
    def answers_as_the_dict_does(self) -> None:
        self._forget_evicted()
        assert {row.key for row in self.store.entries()} == set(self.held)
        for key, known in self.held.items():
            reader = self.store.open(key)
            assert isinstance(reader, BlobReader), (key, reader)
            assert bytes(reader.blob()) == known.data
        assert self.store.usage()[-1].blobs == len(self.held)


class MemoryModel(Model):
    url = "mem://"


class LmdbModel(Model):
    url = "lmdb://{0}/a"


class FolderModel(Model):
    url = "file://{0}/a"


class TieredModel(Model):
    url = "tiered:mem://?budget=12kB|lmdb://{0}/a?budget=2MB|file://{0}/b"


class SmallMemoryModel(Model):
    url = "mem://?budget=20kB&tenant_budget=15kB"
    forgets = True


class SmallLmdbModel(Model):
    url = "lmdb://{0}/a?budget=300kB&tenant_budget=60kB"
    forgets = True


MODELS = [MemoryModel, LmdbModel, FolderModel, TieredModel, SmallMemoryModel, SmallLmdbModel]


@pytest.mark.parametrize("length", [SHORT, pytest.param(LONG, marks=pytest.mark.long)], ids=["short", "long"])
@pytest.mark.parametrize("model", MODELS)
def test_a_store_answers_as_a_dict_does(model: type[Model], length: settings) -> None:
    run_state_machine_as_test(model, settings=length)
