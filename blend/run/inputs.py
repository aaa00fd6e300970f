"""The hidden states that enter a layer, kept for each token in the form of keys and values: half of them as either.

So it is stored, packed, placed and dropped as these are. Knows no model. Letters: `H` heads, `T` tokens, `D` dims of a
head, `E` numbers of a token.
"""

import torch
from torch import Tensor

from blend.run.context import LayerShape

DIMS = (32, 16, 8)  # of the heads that it is cut into: a few large numbers spoil the codes of no more than so many


def input_shape(width: int) -> LayerShape | None:
    """How so many numbers are kept; None where they are not to be cut into heads."""
    dim = next((each for each in DIMS if width % (2 * each) == 0), None)
    return None if dim is None else LayerShape(width // dim // 2, dim, width // dim // 2, dim)


def halves(hidden: Tensor, shape: LayerShape) -> tuple[Tensor, Tensor]:
    """What enters (1, T, E), as keys and values (H, T, D) of this shape."""
    both = hidden[0].view(-1, 2, shape.key_heads, shape.key_dim).permute(1, 2, 0, 3)
    return both[0], both[1]


def whole(keys: Tensor, values: Tensor) -> Tensor:
    """What enters (1, T, E), of keys and values (H, T, D)."""
    return torch.stack((keys, values)).permute(2, 0, 1, 3).flatten(1)[None]
