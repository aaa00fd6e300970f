"""Lets a CPU take the paths of a GPU, as a plugin: `pytest -p tests.blend.as_on_gpu tests/blend` (`make test-as-gpu`).

Records come in large units, which torch unpacks as on a card without triton (`test_placement.py` has the kernel),
so are requests decoded, rows that adjoin behind others are one call, and a fuse computes many rows at a time.
`test_layer_graphs.py` has the kernels of rows.
"""

import pytest

from blend.capture import captured_pass
from blend.fuse import fuse, record_loader
from blend.place.torch_placement import TorchPlacement
from blend.run import attention, decoder

OF_A_CPU = {  # what they measure is a CPU's own way
    "test_a_step_makes_the_logits_that_it_makes_request_by_request",
    "test_a_fuse_takes_little_more_than_the_prompts_keys_and_values",
}


def pytest_configure() -> None:
    patch = pytest.MonkeyPatch()
    patch.setattr(record_loader, "is_apart", lambda device: True)  # pyright: ignore[reportUnknownLambdaType]
    patch.setattr(captured_pass, "is_apart", lambda device: True)  # pyright: ignore[reportUnknownLambdaType]
    patch.setattr(decoder, "placement", TorchPlacement)
    patch.setattr(decoder, "cpu_row_tables", lambda dtype, device: None)  # pyright: ignore[reportUnknownLambdaType]
    patch.setattr(attention, "_sees_behind_others", lambda query: True)  # pyright: ignore[reportUnknownLambdaType]
    patch.setitem(fuse.PIECE_ROWS, "cpu", fuse.PIECE_ROWS["cuda"])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if getattr(item, "originalname", item.name) in OF_A_CPU:
            item.add_marker(pytest.mark.skip(reason="of a CPU's own way"))
