"""What the service is started with: settings, operating points, models that are new to a store, and the switch."""

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blend.fuse.fuse import BlendOrder
from blend.fuse.policy import AskRule, policy_name
from service.answers.blend_decision import GAIN, TRIED, BlendInputs, Expected, decide
from service.app import composition
from service.app.compose_truth import compose_truth
from service.app.composition import compose_core
from service.app.core import Core
from service.app.operating_point import operating_point, point_file
from service.commands.serve import bound
from service.documents.tenants import Tenants
from service.errors import ServiceError
from service.settings import SettingsError
from service.telemetry.logs import FIELDS
from service.telemetry.traces import Tracer
from service.truth.control import Control
from service.truth.databases import hold
from service.truth.truth import Truth
from service.vllm.handoffs import Handoffs
from store.blob_store import BlobStore
from store.codec.decode import decode
from store.codec.encode import encode
from store.errors import MissReason, StoreUnavailable
from store.key import Scope
from store.reader import BlobReader
from store.record import LayerKV, Record
from store.scrub import collect
from store.tiers.memory_store import MemoryStore
from store.url import open_store
from tests.service.checkpoints import checkpoint
from tests.service.demo_served import DOCUMENTS
from tests.service.overhearing import decisions_in, inputs_in
from tests.service.passages import QUESTIONS
from tests.service.serving import Inside, ask, good, in_process, put_in, settings_in, wait_for


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    with in_process(settings_in(tmp_path_factory.mktemp("switch")), documents=DOCUMENTS) as served:
        yield served


@pytest.mark.parametrize("wish", [{"enabled": False}, {"enabled": True, "share": 0.0}])
def test_a_switch_sends_every_request_to_full_prefill(inside: Inside, wish: dict[str, object]) -> None:
    with inside.client() as client:
        before = ask(client, QUESTIONS[0])
        good(client.put("/v1/admin/blend", json=wish))
        try:
            switched = ask(client, QUESTIONS[0], blend={"policy": "reuse"})
            full = ask(client, QUESTIONS[0], blend={"policy": "full"})
        finally:
            good(client.put("/v1/admin/blend", json={"enabled": True}))
        after = ask(client, QUESTIONS[0])
    assert {chunk["source"] for answer in (before, after) for chunk in answer["report"]["chunks"]} == {"lmdb"}
    assert switched["report"]["policy"] == "full" and switched["answer"] == full["answer"]
    assert {chunk["miss_reason"] for chunk in switched["report"]["chunks"]} == {"controller"}
    assert {chunk["miss_reason"] for chunk in full["report"]["chunks"]} == {None}


def test_a_canary_gets_its_share_and_the_log_tells_why(inside: Inside, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with inside.client() as client:
        good(client.put("/v1/admin/blend", json={"enabled": True, "share": 0.5}))
        try:
            brief = {"max_tokens": 1}
            policies = [ask(client, QUESTIONS[0], sampling=brief)["report"]["policy"] for _ in range(40)]
        finally:
            good(client.put("/v1/admin/blend", json={"enabled": True}))
    assert {"full", inside.core.model.order.policy} == set(policies)  # that all are alike happens once in 10^11

    wait_for(lambda: len(decisions_in(caplog)) == len(policies), "every request is logged, each behind its answer")
    assert [decide(each).order.policy for each in decisions_in(caplog)] == policies


UNIT = st.floats(0, 1, exclude_max=True)
SECONDS = st.floats(1e-6, 1e3)


@given(
    policy=st.sampled_from(["full", "reuse", str(AskRule((1, 2)))]),
    ratio=UNIT,
    is_on=st.booleans(),
    share=UNIT,
    draw=UNIT,
    expected=st.none() | st.builds(Expected, SECONDS, SECONDS, SECONDS),
    tried=UNIT,
)
def test_a_decision_is_made_again_out_of_its_line(
    policy: str, ratio: float, *, is_on: bool, share: float, draw: float, expected: Expected | None, tried: float
) -> None:
    inputs = BlendInputs(BlendOrder(policy, ratio), is_on, share, draw, expected, tried)
    assert inputs_in(str(inputs)) == inputs
    decision = decide(inputs)
    forced = policy != "full" and not (is_on and draw < share)
    assert (decision.reason is MissReason.CONTROLLER) == forced
    if forced:
        assert decision.order == BlendOrder("full", 0.0)
    elif decision.reason is None:
        assert decision.order == inputs.wanted
    else:
        assert expected is not None and decision.order.policy in ("full", "prefix")
        is_sooner = expected.blend_s < GAIN * min(expected.full_s, expected.prefix_s)
        assert decision.reason is (MissReason.TRIAL if is_sooner else MissReason.SOONER)
        assert not is_sooner or draw < tried * share


@given(full_s=SECONDS, prefix_s=SECONDS, blend_s=SECONDS, draw=st.floats(TRIED, 1, exclude_max=True))
def test_what_is_quicker_by_far_is_chosen_and_what_is_slower_never_is(
    full_s: float, prefix_s: float, blend_s: float, draw: float
) -> None:
    inputs = BlendInputs(BlendOrder("reuse", 0.0), True, 1.0, draw, Expected(full_s, prefix_s, blend_s))
    order = decide(inputs).order
    taken_s = {"full": full_s, "prefix": prefix_s, "reuse": blend_s}[order.policy]
    quickest = min(full_s, prefix_s, blend_s)
    assert taken_s <= quickest / GAIN
    assert order.policy == "reuse" or blend_s * 1.3 >= min(full_s, prefix_s)


def test_the_way_that_is_not_chosen_is_tried_now_and_then_unless_it_is_far_slower() -> None:
    near = Expected(1.0, 1.0, 1.2)
    shares = {
        expected: sum(
            decide(BlendInputs(BlendOrder("reuse", 0.0), True, 1.0, at / 3200, expected)).reason is None
            for at in range(3200)
        )
        for expected in (near, Expected(1.0, 1.0, 3.0))
    }
    assert list(shares.values()) == [100, 0]


def test_a_policy_that_is_asked_for_by_name_comes_with_the_rule_that_is_in_force(inside: Inside) -> None:
    with inside.client() as client:
        named = ask(client, QUESTIONS[0], blend={"policy": "ask", "ratio": 0.2})["report"]
    assert "/layers=" in named["policy"] and (named["policy"], named["ratio"]) == (inside.core.model.order.policy, 0.2)


def test_the_point_of_an_evaluation_is_taken_unless_the_settings_say_more(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    weights = composition.compose_model(settings).fingerprint.weights
    assert policy_name(operating_point(settings, weights).policy) == "ask"  # the built-in model's own
    file = point_file(settings, weights)
    file.parent.mkdir(parents=True)
    file.write_text('policy = "heads"\nratio = 0.4\ncodec = "q8"\n')
    core = compose_core(settings)
    try:
        core.wait()
        assert (core.model.order.policy, core.model.order.ratio, core.model.codec) == ("heads", 0.4, "q8")
    finally:
        core.close()
    assert operating_point(settings_in(tmp_path, ratio=0.2), weights).policy == "ask"
    file.write_text('policy = "magic"\nratio = 0.4\ncodec = "q8"\n')
    with pytest.raises(SettingsError, match="eval --save auto"):
        operating_point(settings, weights)


def test_a_model_with_states_is_exact_until_a_point_was_chosen_for_it(tmp_path: Path) -> None:
    settings, weights = settings_in(tmp_path, model="./hybrid"), "w1"
    assert operating_point(settings, weights).policy == "ask"
    assert operating_point(settings, weights, has_states=True).policy == "prefix"
    assert operating_point(settings_in(tmp_path, policy="ask"), weights, has_states=True).policy == "ask"
    file = point_file(settings, weights)
    file.parent.mkdir(parents=True)
    file.write_text('policy = "reuse"\nratio = 0.0\ncodec = "q4"\n')
    assert operating_point(settings, weights, has_states=True).policy == "reuse"


def test_a_store_of_another_model_is_told_and_its_chunks_say_what_differs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with in_process(settings_in(tmp_path)) as served, served.client() as client:
        put_in(client, DOCUMENTS)
    other = checkpoint(tmp_path / "other")
    with in_process(settings_in(tmp_path, model=other)) as served, served.client() as client:
        answer = ask(client, QUESTIONS[0], sampling={"max_tokens": 4})
    told = [getattr(record, FIELDS) for record in caplog.records if "another fingerprint" in record.message]
    assert [each["differs"] for each in told] == ["weights"]
    scope, old = Scope(told[0]["tenant"]), told[0]["fingerprints"].split(", ")
    with closing(open_store(settings_in(tmp_path).store)) as store:
        assert told[0]["nbytes"] == sum(entry.nbytes for entry in store.entries(scope) if entry.key.origin in old) > 0
        for each in old:
            collect(store, each)
        assert not {entry.key.origin for entry in store.entries(scope)}.intersection(old)
    assert {chunk["miss_reason"] for chunk in answer["report"]["chunks"]} == {"weights"}


def test_records_that_the_model_would_not_compute_are_never_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As after an upgrade that changed what is computed: stored well, named alike, and wrong."""
    settings = settings_in(tmp_path)
    with in_process(settings) as served, served.client() as client:
        put_in(client, DOCUMENTS)
        right = ask(client, QUESTIONS[0], blend={"policy": "reuse"})
        store = served.core.store
        for key in [entry.key for entry in store.entries()]:
            found = store.open(key)
            assert isinstance(found, BlobReader)
            layers = [each and LayerKV(-each.keys, each.values) for each in decode(found).layers]
            store.replace(encode(Record("float32", tuple(layers)), key, terms=found.head.terms))
    with in_process(settings) as served, served.client() as client:
        again = ask(client, QUESTIONS[0], blend={"policy": "reuse"})
        put_in(client, [{**each, "metadata": {"again": 1}} for each in DOCUMENTS])
    assert "its fingerprint is retired" in caplog.text
    assert {chunk["source"] for chunk in again["report"]["chunks"]} == {"computed"}
    caplog.clear()
    with in_process(settings) as served, served.client() as client:
        mended = ask(client, QUESTIONS[0], blend={"policy": "reuse"})
    assert caplog.text.count("its fingerprint is retired") == 1  # the first one, again
    assert {chunk["source"] for chunk in mended["report"]["chunks"]} == {"lmdb"}
    assert mended["answer"] == right["answer"]


class Gone(MemoryStore):
    """A store that stops to answer."""

    answers = True

    def tenants(self) -> list[str]:
        if not self.answers:
            raise StoreUnavailable("s3://bucket does not answer")
        return super().tenants()


def test_it_is_not_ready_while_the_model_loads_nor_when_the_store_does_not_answer(tmp_path: Path) -> None:
    settings, store, go = settings_in(tmp_path), Gone(), threading.Event()

    def load(store: BlobStore, control: Control, truth: Truth, handoffs: Handoffs) -> Tenants:
        go.wait()
        return composition.compose_tenants(settings, store, control=control, truth=truth)

    core = Core(settings, truth=lambda: compose_truth(settings), store=lambda: store, load=load, tracer=Tracer())
    try:
        assert "loading" in (core.not_ready() or "")
        with pytest.raises(ServiceError, match="loading"):
            _ = core.pipeline
        go.set()
        core.wait()
        assert core.not_ready() is None
        store.answers = False
        assert "s3://bucket" in (core.not_ready() or "")
    finally:
        go.set()
        core.close()


def test_traces_to_no_url_end_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="traces"):
        compose_core(settings_in(tmp_path, traces="nonsense"))


def test_an_embedder_without_a_name_ends_the_start(tmp_path: Path) -> None:
    core = compose_core(settings_in(tmp_path, embedder="http://127.0.0.1:1/v1"))
    try:
        core.wait()
        assert core.failed.is_set() and "#NAME" in (core.not_ready() or "")
    finally:
        core.close()


def test_two_services_do_not_share_a_folder(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    with hold(settings.data), pytest.raises(ServiceError, match="in use by another service"):
        compose_core(settings)


def test_a_connection_names_its_protocol_so_that_asyncio_sends_small_answers_at_once() -> None:
    with bound("127.0.0.1", 0) as [listening]:
        listening.listen()
        with socket.create_connection(listening.getsockname()[:2]):
            accepted, _ = listening.accept()
            with accepted:
                assert accepted.proto == socket.IPPROTO_TCP
