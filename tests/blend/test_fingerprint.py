"""What must match before a record may be used."""

import json
import os
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor
from transformers import Gemma3TextConfig, LlamaConfig

from blend.adopt import digests
from blend.adopt.digests import rope_digest, stored_digest, weights_digest
from blend.errors import UnsupportedModel
from store.fingerprint import Fingerprint, digest_ids

SAMPLE = Fingerprint("w", "a", "t", "r", "bfloat16", "p", "1")
NAMES = [field.name for field in fields(Fingerprint)]


class Holder(nn.Module):
    """A state dict of any tensors."""

    def __init__(self, **tensors: torch.Tensor) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Two files of weights, written long ago."""
    folder = tmp_path / "model"
    folder.mkdir()
    for number in (1, 2):
        save_file({"weight": torch.arange(number * 100.0)}, folder / f"model-{number}.safetensors")
    (folder / "config.json").write_text(json.dumps({"hidden_size": 8}))
    return age(folder)


def age(folder: Path) -> Path:
    for number, file in enumerate(sorted(folder.iterdir())):
        os.utime(file, ns=(10**18 + number, 10**18 + number))
    return folder


def swap(file: Path, *, later_ns: int) -> None:
    """Other bytes of the same length; the time is set to that of before, or later."""
    before = file.stat().st_mtime_ns
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    os.utime(file, ns=(before + later_ns, before + later_ns))


@pytest.mark.parametrize("name", NAMES)
def test_a_difference_in_any_field_is_named_and_changes_the_digest(name: str) -> None:
    other = replace(SAMPLE, **{name: "other"})
    assert SAMPLE.differs(other) == other.differs(SAMPLE) == name
    assert other.digest != SAMPLE.digest
    assert SAMPLE.differs(replace(SAMPLE)) is None


def test_fields_do_not_run_into_each_other() -> None:
    assert replace(SAMPLE, weights="wt", tokenizer="").digest != SAMPLE.digest
    assert replace(SAMPLE, weights="t", tokenizer="w").digest != SAMPLE.digest


def test_the_digest_is_the_same_in_every_release() -> None:
    assert SAMPLE.digest == "42b15b6008aeed9072de893c4981f25f"
    assert digest_ids([1, 2, 300000]) == "7311ea438e2ee7a822b8a2f2bcae6857"


def test_a_fingerprint_survives_a_dict_of_texts_and_refuses_another() -> None:
    assert Fingerprint.from_dict(SAMPLE.to_dict()) == SAMPLE
    for wrong in ({}, {**SAMPLE.to_dict(), "more": "x"}, {**SAMPLE.to_dict(), "rope": 1}):
        with pytest.raises(ValueError, match="weights, architecture, tokenizer, rope"):
            Fingerprint.from_dict(wrong)


DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int8, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_changed_bit_of_any_weight_is_seen(dtype: torch.dtype) -> None:
    bits = torch.zeros(6 * dtype.itemsize, dtype=torch.uint8)
    seen = {weights_digest(Holder(a=bits.view(dtype).view(2, 3), b=torch.ones(())))}
    for place in range(0, len(bits), dtype.itemsize):
        bits[place] ^= 1
        seen.add(weights_digest(Holder(a=bits.clone().view(dtype).view(2, 3), b=torch.ones(()))))
    assert len(seen) == 7


def test_names_dtypes_and_shapes_count() -> None:
    zeros = torch.zeros(4)
    states = [{"a": zeros}, {"b": zeros}, {"a": zeros.view(2, 2)}, {"a": zeros.view(torch.int32)}, {"a": zeros[:0]}]
    assert len({weights_digest(Holder(**state)) for state in states}) == len(states)


def test_how_a_tensor_lies_in_memory_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = torch.arange(2 * 5 * 7, dtype=torch.bfloat16).view(2, 5, 7)
    turned = wide.transpose(0, 2).contiguous().transpose(0, 2)
    whole = weights_digest(Holder(a=wide))
    assert weights_digest(Holder(a=turned)) == whole
    monkeypatch.setattr(digests, "_PIECE_BYTES", 6)
    assert weights_digest(Holder(a=wide)) == weights_digest(Holder(a=turned)) == whole


def test_tied_weights_are_read_once_and_count_as_equal_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, moved = torch.randn(8), list[int]()
    pieces: Callable[[torch.Tensor], object] = digests._pieces
    monkeypatch.setattr(digests, "_pieces", lambda tensor: moved.append(1) or pieces(tensor))
    tied = weights_digest(Holder(a=weight, b=weight))
    assert len(moved) == 1
    assert tied == weights_digest(Holder(a=weight, b=weight.clone()))
    assert tied != weights_digest(Holder(a=weight, b=weight + 1))


@pytest.mark.parametrize("part", [lambda w: w[:3], lambda w: w[:3, :3].T, lambda w: w[::2]])
def test_views_of_one_memory_count_as_what_they_show(part: Callable[[torch.Tensor], torch.Tensor]) -> None:
    weight = torch.randn(6, 6)
    alone = Holder(a=weight.clone(), b=weight[:3, :3].clone(), c=part(weight).clone())
    assert weights_digest(Holder(a=weight, b=weight[:3, :3], c=part(weight))) == weights_digest(alone)


def test_packed_types_of_tensors_are_told_apart_by_what_they_hold() -> None:
    def packed(first: int, second: int) -> str:
        model = nn.Module()
        model.weight = nn.Parameter(TwoTensor(torch.full((3,), first), torch.full((3,), second)), requires_grad=False)
        return weights_digest(model)

    assert len({packed(1, 2), packed(2, 1), packed(1, 3), packed(1, 2)}) == 3


def test_weights_without_bytes_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="'a' has no plain bytes"):
        weights_digest(Holder(a=torch.zeros(3, device="meta")))
    with pytest.raises(UnsupportedModel, match="load all of it"):
        weights_digest(Holder(a=torch.eye(3).to_sparse()))


def test_a_changed_byte_a_renamed_file_and_another_quantization_are_seen(checkpoint: Path) -> None:
    seen = [stored_digest(checkpoint), stored_digest(checkpoint)]
    file = checkpoint / "model-2.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    seen.append(stored_digest(checkpoint))
    file.write_bytes(whole)
    (checkpoint / "config.json").write_text(json.dumps({"quantization_config": {"bits": 4}}))
    seen.append(stored_digest(checkpoint))
    (checkpoint / "config.json").write_text(json.dumps({"hidden_size": 8, "use_cache": True}))
    seen.append(stored_digest(checkpoint))
    file.rename(checkpoint / "model-3.safetensors")
    seen.append(stored_digest(checkpoint))
    assert [seen.index(each) for each in seen] == [0, 0, 2, 3, 0, 5]


def test_older_checkpoints_count_only_where_there_are_no_safetensors(checkpoint: Path) -> None:
    whole = stored_digest(checkpoint)
    (checkpoint / "pytorch_model.bin").write_bytes(b"older")
    assert stored_digest(checkpoint) == whole
    for file in checkpoint.glob("*.safetensors"):
        file.unlink()
    older = stored_digest(checkpoint)
    assert older != whole
    (checkpoint / "pytorch_model.bin").unlink()
    with pytest.raises(UnsupportedModel, match="name the folder"):
        stored_digest(checkpoint)


def test_files_of_the_same_size_and_time_are_not_read_again(checkpoint: Path, tmp_path: Path) -> None:
    cache = tmp_path / "digests.json"
    first = stored_digest(checkpoint, cache=cache)
    assert first == stored_digest(checkpoint)
    swap(checkpoint / "model-1.safetensors", later_ns=0)
    assert stored_digest(checkpoint, cache=cache) == first != stored_digest(checkpoint)
    swap(checkpoint / "model-2.safetensors", later_ns=1)
    assert stored_digest(checkpoint, cache=cache) != first


def test_a_file_that_was_just_written_is_not_remembered(checkpoint: Path, tmp_path: Path) -> None:
    cache, file = tmp_path / "digests.json", checkpoint / "model-1.safetensors"
    os.utime(file)
    first = stored_digest(checkpoint, cache=cache)
    swap(file, later_ns=0)
    assert stored_digest(checkpoint, cache=cache) != first


@pytest.mark.parametrize(
    "damage",
    [b"", b"\xff\xfe{", b"[1, 2]", b"{", b"[" * 100_000, b'{"PLACE": 7}', b'{"PLACE": ["SIZE", "TIME", "x"]}'],
    ids=str,
)
def test_a_damaged_cache_is_ignored_and_replaced(checkpoint: Path, tmp_path: Path, damage: bytes) -> None:
    cache, file = tmp_path / "digests.json", checkpoint / "model-1.safetensors"
    for name, value in (("PLACE", file), ("SIZE", file.stat().st_size), ("TIME", file.stat().st_mtime_ns)):
        damage = damage.replace(name.encode(), str(value).encode())
    cache.write_bytes(damage)
    assert stored_digest(checkpoint, cache=cache) == stored_digest(checkpoint)
    assert len(json.loads(cache.read_text())) == 2
    assert sorted(each.name for each in tmp_path.iterdir()) == ["digests.json", "model"]


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    for cache in (tmp_path / "taken", tmp_path / "absent" / "digests.json"):
        assert stored_digest(checkpoint, cache=cache) == stored_digest(checkpoint)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["model", "taken"]


def test_prefixes_and_rope_parameters_are_told_apart() -> None:
    assert len({digest_ids(ids) for ids in ([], [0], [0, 0], [1], [256], [1, 0])}) == 6
    configs = [LlamaConfig(), LlamaConfig(rope_parameters={"rope_type": "default", "rope_theta": 5e5})]
    nested = [Gemma3TextConfig(), Gemma3TextConfig()]
    assert nested[1].rope_parameters
    nested[1].rope_parameters["sliding_attention"]["rope_theta"] = 7.0
    assert len({rope_digest(config) for config in (*configs, *nested)}) == 4
    assert rope_digest(LlamaConfig()) == rope_digest(LlamaConfig(hidden_size=8, num_attention_heads=2))
