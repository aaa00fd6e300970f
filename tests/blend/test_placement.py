"""Each placement by the contract of all, and what holds of one alone."""

import os
import subprocess
import sys
from collections.abc import Iterator
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blend.kernels.kernels import gpu_place_kernel
from blend.place import gpu_placement, placements
from blend.place.cpu_placement import CpuPlacement
from blend.place.gpu_placement import GpuPlacement
from blend.place.placement import LayerPlaces, Placement, RowTurn, SplitPlacement
from blend.place.placements import placement
from blend.place.rotation import Pairing, Rotation
from blend.place.torch_placement import DTYPES, TorchPlacement
from store.record import Dtype, LayerKV
from store.rows import plain_rows
from tests.blend.placing import (
    CARD,
    CPU,
    DIM,
    FORMS,
    IS_INTERPRETED,
    SPECS,
    UNTURNED,
    Contract,
    OfAnyStrides,
    angles,
    as_tensor,
    both_forms,
    decoded,
    filled,
    interpreter,
    plain,
    stored,
    turned,
)
from tests.store.test_codec import LOSSY


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for name in ("spec", "dtype", "draw"):
        if name in metafunc.fixturenames and metafunc.cls is not None:
            metafunc.parametrize(name, getattr(metafunc.cls, f"{name}s"))


class TestTorchPlacement(Contract):
    @staticmethod
    def placement(dtype: torch.dtype, device: torch.device) -> Placement:
        return TorchPlacement(dtype, device)


class TestTorchPlacementOfAnyStrides(OfAnyStrides, TestTorchPlacement):
    specs, draws = ("q4",), ("normal",)


class TestCpuPlacement(Contract):
    dtypes = ("float32", "bfloat16")
    device = CPU

    @staticmethod
    def placement(dtype: torch.dtype, device: torch.device) -> Placement:
        found = placement(dtype, device)
        assert isinstance(found, SplitPlacement) and isinstance(found.kernel, CpuPlacement)
        return found

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def nothing_left_to_learn(cls) -> Iterator[None]:
        """A kernel that is made knows the types of all that comes: numba may learn them wrongly if two threads call."""
        kernels = [placement(DTYPES[dtype], CPU).kernel._kernel for dtype in cls.dtypes]  # type: ignore[attr-defined]
        asked = Mock(side_effect=AssertionError("numba looks for what fits these types"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(kernels[0]), "_search_new_conversions", asked)
            yield
            asked.assert_not_called()

    @settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
    @given(
        codec=st.sampled_from(LOSSY),
        dtyped=st.sampled_from(["float32", "bfloat16"]),
        shape=st.tuples(st.integers(1, 3), st.integers(1, 20) | st.integers(120, 300), st.integers(1, 9)),
        rest=st.tuples(st.integers(0, 5), st.integers(0, 5)),
        way=st.tuples(st.sampled_from(["halves", "neighbours"]), st.sampled_from([1, -1])),
    )
    def test_what_turns_is_off_by_its_rounding_alone(
        self,
        codec: str,
        dtyped: Dtype,
        shape: tuple[int, int, int],
        rest: tuple[int, int],
        way: tuple[Pairing, int],
    ) -> None:
        heads, tokens, pairs = shape
        reader = stored(
            plain("normal", (heads, tokens, rest[0] + 2 * pairs + rest[1]), (1, tokens, 4), dtype=dtyped), codec
        )
        rotation, there = Rotation(way[0], rest[0], pairs, way[1]), angles(pairs, slots=tokens)
        out, values = filled(decoded(reader), tokens, device=CPU)
        turns = RowTurn(rotation, there), UNTURNED
        rows = both_forms(reader)[tokens % 2]
        places = LayerPlaces([(out, values)], rows, np.array([(0, tokens)]), [turns])
        self.placement(DTYPES[dtyped], CPU).place(places)
        keys = as_tensor(decoded(reader).keys)
        wanted = turned(keys, rotation, there)
        room = torch.finfo(DTYPES[dtyped]).eps * wanted.abs() / 2
        room += 4 * torch.finfo(torch.float32).eps * keys.abs().max()
        assert ((out.double() - wanted).abs() <= room).all()

    @pytest.mark.long
    def test_a_cpu_with_no_instructions_of_its_own_does_the_same(self) -> None:
        some = "TestCpuPlacement and heads_of_any_width and bfloat16 and (q4 or q2.9)"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            __file__,
            "-k",
            some,
        ]
        subprocess.run(command, env={**os.environ, "NUMBA_CPU_NAME": "generic"}, check=True, timeout=300)


@pytest.mark.skipif(
    not IS_INTERPRETED and (gpu_place_kernel is None or not torch.cuda.is_available()),
    reason="neither a CUDA device, nor TRITON_INTERPRET with the interpreter of Triton 3.6",
)
class TestGpuPlacement(OfAnyStrides):
    """On a card, or in Triton's interpreter, which takes less of each kind."""

    specs = ("lossless", "q3", "k3v8@1-q2", "k1.5v4@1-k3v2.3") if IS_INTERPRETED else SPECS
    draws = ("to_the_brim", "zero", "faint", "far_off") if IS_INTERPRETED else Contract.draws
    forms = FORMS[:1] if IS_INTERPRETED else FORMS
    device = CPU if IS_INTERPRETED else CARD

    @staticmethod
    def placement(dtype: torch.dtype, device: torch.device) -> Placement:
        return SplitPlacement(GpuPlacement(dtype, device), plain=TorchPlacement(dtype, device))

    @pytest.fixture(autouse=True)
    def rounding_as_cards_do(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The interpreter cuts bfloat16 off where a card rounds; one token takes it as long as many."""
        if not IS_INTERPRETED:
            return
        assert interpreter is not None
        convert, tl = interpreter._convert_float, interpreter.tl

        def converted(numbers: np.ndarray, source: object, to: object, mode: object) -> np.ndarray:
            held = torch.from_numpy(np.ascontiguousarray(numbers))
            if (source, to) == (tl.float32, tl.bfloat16):
                return held.bfloat16().view(torch.uint16).numpy()
            if (source, to) == (tl.bfloat16, tl.float32):
                return held.view(torch.bfloat16).float().numpy()
            return convert(numbers, source, to, mode)

        monkeypatch.setattr(interpreter, "_convert_float", converted)
        monkeypatch.setattr(gpu_placement, "_TOGETHER", 128)

    @pytest.mark.parametrize("together", [8, 128])
    def test_a_trellis_goes_on_from_where_the_tokens_before_ended(
        self, together: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(gpu_placement, "_TOGETHER", together)
        reader = stored(plain("normal", (1, 203, 6), (1, 203, 6)), "q2.9")
        self.check([(both_forms(reader)[1], decoded(reader), (0, 203))], (None, None))

    @pytest.mark.parametrize("is_compiled", [True, False])
    def test_frames_come_together_with_numba_and_without(
        self,
        is_compiled: bool,  # noqa: FBT001
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        if not is_compiled:
            monkeypatch.setattr(gpu_placement, "gathered", None)
        readers = [stored(plain("normal", (1, tokens, DIM), (1, tokens, 10)), "q4") for tokens in (9, 140, 1)]
        slots = [(0, 9), (12, 21), (21, 22)]
        records = [(both_forms(each)[0], decoded(each), where) for each, where in zip(readers, slots, strict=True)]
        self.check(records, (None, None))

    @pytest.mark.skipif(IS_INTERPRETED, reason="the interpreter takes too long")
    @pytest.mark.parametrize("codec", ["q4", "q2.9"])
    def test_a_card_places_a_long_prompt(self, codec: str) -> None:
        reader = stored(plain("normal", (8, 256, 128), (8, 256, 128)), codec)
        for rows in both_forms(reader):
            records = [(rows, decoded(reader), (256 * chunk, 256 * chunk + 256)) for chunk in range(32)]
            self.check(records, (Rotation("halves", 0, 64), None))


def test_what_no_kernel_places_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(placement(torch.float16, CPU), TorchPlacement)
    monkeypatch.setattr(placements, "gpu_place_kernel", None)
    assert isinstance(placement.__wrapped__(torch.bfloat16, CARD), TorchPlacement)
    monkeypatch.setattr(placements, "cpu_place_kernel", None)
    assert isinstance(placement.__wrapped__(torch.bfloat16, CPU), TorchPlacement)


def test_a_record_of_another_dtype_is_refused() -> None:
    layer = LayerKV(np.zeros((1, 2, 4), np.float32), np.zeros((1, 2, 4), np.float32))
    out = torch.zeros(2, 1, 2, 4, dtype=torch.bfloat16)
    places = LayerPlaces([(out[0], out[1])], plain_rows([layer]), np.array([(0, 2)]), [(UNTURNED, UNTURNED)])
    with pytest.raises(AssertionError, match=r"32 bits.*bfloat16"):
        TorchPlacement(torch.bfloat16, CPU).place(places)
