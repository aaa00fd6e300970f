"""`kvweave bench`: its figures against the store and the engine, models of several families, and what it leaves."""

import json
import signal
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest
from transformers import LlamaConfig, PreTrainedConfig
from typer.testing import CliRunner

from blend.engine import engine
from blend.engine.answer_builder import QueuedRequest
from blend.engine.engine import EngineRequest, Ready
from blend.engine.local_engine import LocalEngine
from blend.fuse.fuse import FuseReport
from service import cli
from service.errors import Invalid, ServiceError, Unavailable
from service.lab.bench import scratch_store
from service.lab.bench.bench import BenchMeasurement, BenchPlan, measure
from service.lab.bench.first_token import TimingRow
from service.lab.bench.scratch_store import TENANT, ScratchStore, TierSpeed
from service.lab.bench.worth import worth
from service.lab.time_ratio import TimeRatio
from service.settings import Settings, SettingsError
from store.blob import Blob
from store.blob_store import Put
from store.objects.object_store import ObjectBlobStore
from store.url import open_store
from tests.blend.families import BASE, FAMILIES, build
from tests.blend.tokenizers_made import fresh, made
from tests.service.checkpoints import checkpoint
from tests.service.serving import WAIT_S
from tests.store.samples import blob

PLAN = BenchPlan(chunks=(1, 3), chunk_tokens=64, repeats=1, policies=("reuse",), codecs=("lossless", "q2"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture
def settings(model: str, tmp_path: Path) -> Settings:
    return Settings.model_validate({"model": model, "data": tmp_path / "data", "policy": "hybrid", "codec": "q4"})


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def used(tmp_path: Path) -> str:
    """The URL of a store that somebody uses."""
    url = f"file://{tmp_path}/store"
    with open_store(url) as store:
        store.put(blob(1))
    return url


def kept(url: str) -> tuple[list[str], int]:
    with open_store(url) as store:
        return store.tenants(), sum(1 for _ in store.entries())


def run(settings: Settings, plan: BenchPlan = PLAN) -> BenchMeasurement:
    return measure(settings, plan, on_progress=lambda stage: None)


def of(found: BenchMeasurement, policy: str) -> list[TimingRow]:
    return [row for row in found.rows if row.policy == policy]


def test_bytes_a_token_are_those_of_the_store(settings: Settings, used: str) -> None:
    seen: list[int] = []

    def look(stage: str) -> None:
        if stage.startswith("prompts") and not seen:
            with open_store(used) as store:
                seen.extend(entry.nbytes for entry in store.entries() if entry.key.tenant.startswith(TENANT))

    found = measure(settings, replace(PLAN, store=used), on_progress=look)
    tokens = round(found.facts.chunk_tokens * len(seen))
    assert len(seen) == 3
    assert found.codecs[0].codec == "q4"
    assert found.codecs[0].bytes_per_token == found.worth.bytes_per_token == pytest.approx(sum(seen) / tokens)
    assert of(found, "reuse")[-1].nbytes == sum(seen)
    assert found.worth.needed_bytes_per_s == found.worth.bytes_per_token * found.worth.prefill_tokens_per_s
    assert [tier.tier for tier in found.tiers] == ["object"]


def test_tokens_are_those_that_the_engine_reports(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[FuseReport] = []
    submit = LocalEngine.submit

    def spied(self: LocalEngine, request: EngineRequest, listen) -> QueuedRequest:  # noqa: ANN001
        def hear(event: engine.Event) -> None:
            if isinstance(event, Ready):
                reports.append(event.report)
            listen(event)

        return submit(self, request, hear)

    monkeypatch.setattr(LocalEngine, "submit", spied)
    found = run(settings)
    told = {(each.order.policy, each.reused + each.recomputed + each.fresh): each for each in reports}
    assert len(reports) == len(found.rows) * (PLAN.repeats + 1)
    assert len(found.rows) == 6
    for row in found.rows:
        report = told[row.policy, row.prompt_tokens]
        assert (row.reused, row.recomputed) == (report.reused, report.recomputed)
    for hybrid, reuse in zip(of(found, "hybrid"), of(found, "reuse"), strict=True):
        assert hybrid.reused + hybrid.recomputed == reuse.reused
        assert reuse.recomputed == 0
    assert all(each.recomputed > 0 for each in of(found, "hybrid"))  # a packed record is near, wherever it stands


def test_codecs_are_tried_on_real_records(settings: Settings) -> None:
    found = run(settings, replace(PLAN, codecs=("lossless", "q4", "q2")))
    by_name = {each.codec: each for each in found.codecs}
    assert list(by_name) == ["q4", "lossless", "q2"]
    assert by_name["lossless"].rms_error == 0 < by_name["q4"].rms_error < by_name["q2"].rms_error < 1
    for each in found.codecs:
        assert each.ratio == pytest.approx(found.facts.bytes_per_token / each.bytes_per_token)
        assert each.bits_per_value == pytest.approx(32 / each.ratio)
        assert min(each.pack_tokens_per_s, each.unpack_tokens_per_s) > 0


def llama(**more: int) -> PreTrainedConfig:
    return LlamaConfig(**{**BASE, **more})


def saved(config: PreTrainedConfig, folder: Path) -> str:
    for size in ("vocab_size", "vocab_size_per_layer_input"):
        if hasattr(config, size):
            setattr(config, size, len(made("bytes")))
    build(config).save_pretrained(folder)
    fresh("bytes").save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("name", ["mqa", "gemma3", "gemma4"])  # one head; sliding windows; layers that share
def test_it_measures_models_of_other_kinds(name: str, settings: Settings, tmp_path: Path) -> None:
    config = llama(num_key_value_heads=1) if name == "mqa" else FAMILIES[name]()
    found = run(settings.model_copy(update={"model": saved(config, tmp_path / name)}))
    assert found.facts.layers == config.num_hidden_layers
    assert found.facts.own_layers == found.facts.layers - getattr(config, "num_kv_shared_layers", 0)
    assert all(row.reused > 0 for row in found.rows if row.policy != "full")


def test_a_corpus_is_cut_as_any_other(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.md").write_text("# Pumps\n\nA pump moves water.\n\n# Valves\n\nA valve stops water.\n")
    (tmp_path / "corpus" / "b.pdf").write_bytes(b"no pdf")
    (tmp_path / "corpus" / "c.png").write_bytes(b"no text")
    found = run(settings, replace(PLAN, corpus=str(tmp_path / "corpus"), chunks=(1, 50), chunk_tokens=24))
    assert [problem.place for problem in found.problems] == [str(tmp_path / "corpus" / "b.pdf")]
    assert found.skipped == (str(tmp_path / "corpus" / "c.png"),)
    assert [note.partition(":")[2] for note in found.notes] == [" the corpus has no more."]
    assert found.facts.chunk_tokens <= 24


@pytest.mark.parametrize(
    ("kv_bytes", "reason"),
    [(4 << 30, "the window of 512 tokens holds"), (1 << 17, "KVWEAVE_KV_BYTES has room for")],
)
def test_a_prompt_is_as_long_as_there_is_room(kv_bytes: int, reason: str, settings: Settings, tmp_path: Path) -> None:
    model = saved(llama(max_position_embeddings=512), tmp_path / "model")
    settings = settings.model_copy(update={"model": model, "kv_bytes": kv_bytes})
    found = run(settings, replace(PLAN, chunks=(1, 500), chunk_tokens=32))
    first, last = of(found, "full")
    assert first.chunks == 1 < last.chunks < 500
    assert reason in found.notes[0]
    assert last.prompt_tokens < min(512, kv_bytes / found.facts.bytes_per_token)


def test_nothing_is_left_in_a_store_that_is_named(settings: Settings, used: str, tmp_path: Path) -> None:
    before = files_in(tmp_path / "store")
    run(settings, replace(PLAN, store=used))
    assert files_in(tmp_path / "store") == before


def test_nothing_is_left_in_the_tiers(settings: Settings, tmp_path: Path) -> None:
    tiers = [f"lmdb://{tmp_path}/near", f"file://{tmp_path}/far"]
    found = run(settings, replace(PLAN, store=f"tiered:{'|'.join(tiers)}"))
    assert [tier.tier for tier in found.tiers] == ["lmdb", "object"]
    assert of(found, "reuse")[-1].tiers == ("lmdb",)
    assert [kept(url) for url in tiers] == [([], 0), ([], 0)]


@pytest.mark.parametrize("stage", ["computing chunks", "codecs", "prompts of 3 chunks", "reading from the store"])
def test_nothing_is_left_by_an_interrupted_run(stage: str, settings: Settings, used: str) -> None:
    before = kept(used)

    def interrupt(told: str) -> None:
        if told.startswith(stage):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(settings, replace(PLAN, store=used), on_progress=interrupt)
    assert kept(used) == before


def test_nothing_is_left_where_the_store_still_writes_after_the_interrupt(
    settings: Settings, used: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = kept(used)
    closing = Event()
    put, close = ObjectBlobStore.put, ObjectBlobStore.close
    late: list[Put] = []
    begun: list[str] = []

    def interrupted(self: ObjectBlobStore, blob: Blob) -> Put:
        begun.append(blob.head.chunk)
        if blob.head.chunk == begun[0]:
            raise KeyboardInterrupt
        assert closing.wait(WAIT_S)
        late.append(put(self, blob))
        return late[-1]

    def closed(self: ObjectBlobStore) -> None:
        closing.set()
        close(self)

    with monkeypatch.context() as patch:
        patch.setattr(ObjectBlobStore, "put", interrupted)
        patch.setattr(ObjectBlobStore, "close", closed)
        with pytest.raises(KeyboardInterrupt):
            run(settings, replace(PLAN, store=used))
    assert Put.STORED in late
    assert kept(used) == before


def test_what_a_killed_run_left_goes_later(settings: Settings, used: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = kept(used)
    with open_store(used) as store:
        store.put(blob(2, tenant=TENANT + "dead"))
        store.put(blob(2))
    run(settings, replace(PLAN, store=used))
    assert kept(used)[1] == before[1] + 2  # it may run still
    monkeypatch.setattr(scratch_store, "STALE_S", -1.0)
    run(settings, replace(PLAN, store=used))
    assert kept(used)[1] == before[1] + 1


def test_an_operators_stop_leaves_nothing(model: str, used: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before, handler = kept(used), signal.getsignal(signal.SIGTERM)

    def stopped(self: ScratchStore, *arguments: object, **more: object) -> None:
        assert kept(used)[1] > before[1]
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(ScratchStore, "speeds", stopped)
    options = ["--model", model, "--store", used, "--chunks", "2", "--chunk-tokens", "64", "--repeats", "1"]
    assert CliRunner().invoke(cli.app, ["bench", *options]).exit_code == 128 + signal.SIGTERM
    assert kept(used) == before
    assert signal.getsignal(signal.SIGTERM) == handler


def test_a_store_without_room_is_an_error(settings: Settings) -> None:
    with pytest.raises(Unavailable, match=r"over budget\): raise its budget"):
        run(settings, replace(PLAN, store="mem://?budget=4kB"))


def test_a_chunk_that_went_meanwhile_is_an_error(
    settings: Settings, used: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = ScratchStore.write

    def lost(self: ScratchStore, *arguments: object, **more: object) -> object:
        written = write(self, *arguments, **more)  # pyright: ignore[reportArgumentType]
        for key in self.keys:
            self._store.discard(key)
        return written

    monkeypatch.setattr(ScratchStore, "write", lost)
    with pytest.raises(Unavailable, match="absent"):
        run(settings, replace(PLAN, store=used))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--chunks", "2,x"], "got 'x'"),
        (["--chunks", "0"], "got 0"),
        (["--chunks", ","], "got none"),
        (["--codecs", "q9"], "no codec is named 'q9'"),
        (["--policies", "best"], "unknown policy 'best'"),
        (["--chunk-tokens", "4090"], "--chunk-tokens 4090: the window of 4,096 tokens"),
        (["--corpus", "no/such/folder"], "'no/such/folder' is no file"),
    ],
)
def test_an_error_names_value_and_remedy(options: list[str], said: str, model: str) -> None:
    result = CliRunner().invoke(cli.app, ["bench", "--model", model, *options])
    assert isinstance(result.exception, ServiceError)
    assert said in str(result.exception)
    assert "\n" not in str(result.exception)


def test_a_model_that_is_none_is_an_error(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"holds no config\.json"):
        run(settings.model_copy(update={"model": str(tmp_path)}))


def test_settings_that_reuse_nothing_need_a_policy(settings: Settings) -> None:
    settings = settings.model_copy(update={"policy": "full"})
    with pytest.raises(Invalid, match="--policies hybrid"):
        run(settings, replace(PLAN, policies=()))
    assert run(settings).worth.policy == "reuse"


def row(policy: str, tokens: int, sooner: float) -> TimingRow:
    return TimingRow(
        *(tokens // 100, tokens, policy, 0.15),
        first_token_s=tokens / 1000 / sooner,
        against_full=TimeRatio(sooner, sooner, sooner),
        reused=0,
        recomputed=0,
        nbytes=0,
        needed_bytes_per_s=0.0,
        tiers=("lmdb",),
    )


def rows(**sooner: tuple[float, ...]) -> list[TimingRow]:
    return [
        row(policy, 100 * (1 + number), times)
        for policy, each in {"full": (1.0, 1.0, 1.0), **sooner}.items()
        for number, times in enumerate(each)
    ]


@pytest.mark.parametrize(
    ("found", "speed", "pays_from", "said"),
    [
        (rows(hybrid=(2.0, 2.0, 2.0)), 1e9, 100, "from prompts of 100 tokens on, the shortest that were tried"),
        (rows(hybrid=(2.0, 0.9, 2.0)), 1e9, 300, "from prompts of 300 tokens on: with hybrid at ratio 0.15"),
        (rows(hybrid=(2.0, 2.0, 2.0)), 1e3, 100, "keep a nearer tier before it"),
        (rows(hybrid=(2.0, 2.0, 1.01)), 1e9, None, "pays here at 100, 200 tokens, but not at more"),
        (rows(hybrid=(1.03, 1.01, 1.02)), 1e9, None, "The model is too small, or its prompts too short"),
        (rows(hybrid=(0.5, 0.5, 0.5)), 1e3, None, "put a nearer tier before it, or pack smaller"),
        (rows(hybrid=(0.5, 0.5, 0.5), reuse=(3.0, 3.0, 3.0)), 1e9, None, "With reuse it comes 3.00x sooner"),
    ],
)
def test_it_says_where_reuse_pays(found: list[TimingRow], speed: float, pays_from: int | None, said: str) -> None:
    told = worth(found, "hybrid", bytes_per_token=10.0, tiers=[TierSpeed("ram", 1e9), TierSpeed("lmdb", speed)])
    assert told.needed_bytes_per_s == pytest.approx(10_000)
    assert told.pays_from == pays_from
    assert said in told.sentence
    gains = any(each.against_full.is_sooner for each in found if each.policy == "hybrid")
    assert ("does not pay" in told.sentence) == (not gains)


def test_the_command_prints_tables_or_json(model: str) -> None:
    options = ["bench", "--model", model, "--chunks", "1,2", "--chunk-tokens", "32", "--repeats", "1"]
    shown = CliRunner().invoke(cli.app, [*options, "--codecs", "q2"], catch_exceptions=False)
    assert shown.exit_code == 0, shown.output
    assert "prompts of 2 chunks" in shown.stderr
    assert all(word in shown.stdout for word in ("Codecs on", "Time to the first token", "Reuse"))
    told = json.loads(CliRunner().invoke(cli.app, [*options, "--json"], catch_exceptions=False).stdout)
    assert [each["codec"] for each in told["codecs"]] == ["q4", "lossless", "q8", "q6", "q3", "q2"]
    assert {each["policy"] for each in told["rows"]} == {"full", "ask"}
    assert told["worth"]["sentence"]
