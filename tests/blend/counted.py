"""Counts what torch is asked to do."""

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class Counted(TorchDispatchMode):
    """Counts torch's calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        self.calls += 1
        return func(*args, **(kwargs or {}))
