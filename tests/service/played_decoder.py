"""A decoder that knows how rows turn, and has no model: for prompts that are only played."""

from collections.abc import Sequence
from threading import Lock

import torch

from blend.model.context import LayerShape
from blend.model.decoder import Decoder
from blend.model.model_layers import LayerRule, ModelLayers
from blend.model.packed_placer import packed_placer
from blend.model.rotation import Angles, Rotation


class PlayedDecoder(Decoder):
    """Its keys turn by angles of a usual kind, in all layers alike; values do where `values` says how."""

    def __init__(
        self,
        shapes: Sequence[LayerShape],
        keys: Rotation | None,
        *,
        tokens: int,
        values: Rotation | None = None,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        rule = LayerRule(keys, values, 0)
        self.model_layers = ModelLayers(tuple(shapes), (rule,) * len(shapes), frozenset(), frozenset())
        self.dtype, self.device = dtype, torch.device("cpu")
        self._placer = packed_placer(dtype, self.device)
        pairs = max((each.pairs for each in (keys, values) if each), default=0)
        turned = torch.arange(tokens)[:, None] * 500_000.0 ** -(torch.arange(pairs) / max(1, pairs))
        self._tables, self._known, self._growing = {0: Angles(turned.cos(), turned.sin())}, tokens, Lock()
