"""Loading from a folder, as a user does, and what the fingerprint holds."""

import json
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from blend.adopt import load as module
from blend.adopt.load import LoadedModel, adopt, load, usual_sampling
from blend.engine.sampling import Sampling
from blend.errors import TokenizerError, UnsupportedModel
from blend.run.attention import NAME
from blend.run.context import span
from tests.blend.dense import prefill
from tests.blend.every_decoder import save_checkpoint, whole_model
from tests.blend.families import BASE, build, draw, words
from tests.blend.fusing import close

IDS = draw(20, 60)[0]


def save(folder: Path, model: hf.PreTrainedModel) -> str:
    return str(save_checkpoint(model, folder))


@pytest.mark.parametrize(
    ("said", "usual"),
    [
        ({}, Sampling(temperature=1.0)),
        (
            {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "repetition_penalty": 1.1},
            Sampling(temperature=0.6, top_p=0.9, top_k=20, min_p=0.1, repetition_penalty=1.1),
        ),
        ({"do_sample": False}, Sampling(temperature=0.0)),
        ({"temperature": 7.0, "top_p": 0.5}, Sampling(temperature=1.0)),
    ],
)
def test_a_model_samples_as_its_authors_say(said: dict[str, float], usual: Sampling) -> None:
    assert usual_sampling(hf.GenerationConfig(**said)) == usual


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save(tmp_path_factory.mktemp("qwen3"), build(hf.Qwen3Config(**BASE)))


def logits(model: LoadedModel) -> torch.Tensor:
    decoder = model.decoder
    slots = span(0, len(IDS), device=decoder.device)
    found, _ = decoder.prefill(decoder.context(len(IDS)), slots, ids=torch.tensor(IDS))
    assert found is not None
    return found


def test_a_folder_loads_and_computes_what_transformers_computes(checkpoint: str) -> None:
    model = load(checkpoint, device="cpu", dtype="float32")

    assert close(logits(model), prefill(hf.AutoModelForCausalLM.from_pretrained(checkpoint), IDS)[-1])
    assert model.tokenizer.encode_text("w5 w77") == [5, 77]
    assert model.decoder.window == 4096


@pytest.mark.parametrize("is_quick", [True, False])
def test_a_cpu_that_is_slow_at_bfloat16_computes_in_float32_unless_told_otherwise(
    is_quick: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    narrow = save(tmp_path, build(hf.Qwen3Config(**BASE)).bfloat16())
    monkeypatch.setattr(module, "multiplies_bfloat16", lambda: bool(is_quick))
    assert load(narrow, device="cpu").fingerprint.dtype == ("bfloat16" if is_quick else "float32")
    assert ("float32, which is quicker" in caplog.text) is not bool(is_quick)
    assert load(narrow, device="cpu", dtype="bfloat16").fingerprint.dtype == "bfloat16"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_loads_and_passes_the_checks(checkpoint: str, dtype: str) -> None:
    model = load(checkpoint, device="cpu", dtype=dtype)
    reference = prefill(hf.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32), IDS)[-1]

    assert model.decoder.dtype == getattr(torch, dtype)
    assert (logits(model).float() - reference).norm() < 0.1 * reference.norm()
    assert model.fingerprint.dtype == dtype


def test_a_model_that_makes_logits_of_all_rows_gives_those_that_are_wanted(tmp_path: Path) -> None:
    native = whole_model("video_llama_3")
    assert close(
        logits(load(str(save_checkpoint(native, tmp_path)), device="cpu", dtype="float32")), prefill(native, IDS)[-1]
    )


def without(checkpoint: Path, weight: str) -> str:
    """The folder of the checkpoint, once it lacks this weight."""
    kept = load_file(checkpoint / "model.safetensors")
    del kept[next(name for name in kept if name.endswith(weight))]
    save_file(kept, checkpoint / "model.safetensors", metadata={"format": "pt"})
    return str(checkpoint)


def test_a_weight_that_is_missing_is_no_random_one_where_text_runs_through_it(tmp_path: Path) -> None:
    native = whole_model("qwen2_vl")
    blind = without(save_checkpoint(native, tmp_path), "visual.blocks.0.attn.proj.weight")
    assert close(logits(load(blind, device="cpu", dtype="float32")), prefill(native, IDS)[-1])
    with pytest.raises(UnsupportedModel, match="some are missing"):
        load(without(tmp_path, "lm_head.weight"), device="cpu")


def test_a_fingerprint_says_which_field_differs(checkpoint: str, tmp_path: Path) -> None:
    base = load(checkpoint, device="cpu").fingerprint
    again = load(checkpoint, device="cpu", digests=tmp_path / "digests.json").fingerprint
    retrained = load(save(tmp_path / "a", build(hf.Qwen3Config(**BASE), seed=1)), device="cpu").fingerprint
    turned = {**BASE, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}
    rope = load(save(tmp_path / "b", build(hf.Qwen3Config(**turned))), device="cpu").fingerprint
    eps = load(save(tmp_path / "c", build(hf.Qwen3Config(**BASE, rms_norm_eps=1e-3))), device="cpu").fingerprint

    assert base == again
    assert base.differs(again) is None
    assert base.differs(retrained) == "weights"
    assert base.differs(rope) == "rope"
    assert base.differs(eps) == "architecture"
    assert base.differs(load(checkpoint, device="cpu", dtype="bfloat16").fingerprint) == "dtype"


def test_a_model_in_memory_is_known_by_its_weights() -> None:
    one, same, other = (adopt(build(hf.Qwen3Config(**BASE), seed=seed), words()).fingerprint for seed in (0, 0, 1))

    assert one == same
    assert one.differs(other) == "weights"


def test_the_model_still_works_for_others_by_its_own_attention(checkpoint: str) -> None:
    module = load(checkpoint, device="cpu", dtype="float32").decoder.model
    assert module.config._attn_implementation == NAME  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(UnsupportedModel, match="runs inside a step"):
        prefill(module, IDS)

    module.set_attn_implementation("eager")

    assert close(prefill(module, IDS)[-1], prefill(hf.AutoModelForCausalLM.from_pretrained(checkpoint), IDS)[-1])


def test_what_is_no_checkpoint_is_an_error_that_names_it(tmp_path: Path, checkpoint: str) -> None:
    with pytest.raises(UnsupportedModel, match=r"nowhere.*neither a checkpoint's folder"):
        load(str(tmp_path / "nowhere"), device="cpu")
    with pytest.raises(UnsupportedModel, match="float64"):
        load(checkpoint, device="cpu", dtype="float64")
    with pytest.raises(UnsupportedModel, match="no such device"):
        load(checkpoint, device="warp:0")
    (tmp_path / "bare").mkdir()
    build(hf.Qwen3Config(**BASE)).save_pretrained(tmp_path / "bare")
    with pytest.raises(TokenizerError, match="tokenizer"):
        load(str(tmp_path / "bare"), device="cpu")


EVIL = "from pathlib import Path\nPath({canary!r}).touch()\nclass Evil: pass\n"


def hostile(checkpoint: str, folder: Path, *, file: str) -> Path:
    """A checkpoint whose `file` names code that it brings along."""
    shutil.copytree(checkpoint, folder)
    (folder / "evil.py").write_text(EVIL.format(canary=str(folder / "canary")))
    names = {
        "AutoConfig": "evil.Evil",
        "AutoModelForCausalLM": "evil.Evil",
        "AutoTokenizer": ["evil.Evil", "evil.Evil"],
    }
    changed = {"model_type": "evil"} if file == "config.json" else {"tokenizer_class": "Evil"}
    told = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps({**told, **changed, "auto_map": names}))
    return folder


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_code_that_a_checkpoint_brings_along_never_runs(
    checkpoint: str, tmp_path: Path, *, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda prompt="": "y")  # what a hasty user answers
    folder = hostile(checkpoint, tmp_path / "hostile", file=file)
    with suppress(UnsupportedModel, TokenizerError):
        load(str(folder), device="cpu")
    assert not (folder / "canary").exists()


def test_weights_that_are_pickles_are_refused(checkpoint: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(checkpoint, tmp_path / "pickled"))
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(UnsupportedModel, match="safetensors"):
        load(str(folder), device="cpu")
