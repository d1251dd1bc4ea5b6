"""ALiBi: a bias of the scores that grows with the distance between a query and a key.

Models compute it from masks and lengths of a growing cache. A row's softmax does not change with a
constant of the row, so that a bias by keys stands for that of every query. Here it follows from the
numbers that keys have in their rows, which every kind of cache knows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .key_numbers import numbers_of_keys, once
from .proof import NotProven


@dataclass(frozen=True)
class Alibi:
    """The bias of a layer.

    Attributes:
        slopes: of each head.
        rounded: whether keys and products are rounded to bfloat16, as Falcon's are, which count
            from the first token; otherwise they count from the last one, where numbers are small.
        scale: a factor of the product.
    """

    slopes: tuple[float, ...]
    rounded: bool = False
    scale: float = 1.0

    def bias(self, keys: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        """Return the bias [B or 1, Nq, 1, T] of keys by number [B or 1, T], to ``last`` [B, 1]."""
        slopes = torch.tensor(self.slopes).view(1, -1, 1, 1)
        if not self.rounded:
            return slopes * (keys - last)[:, None, None] * self.scale
        products = slopes * keys[:, None, None].bfloat16().float()
        return products.bfloat16().float() * self.scale


def bias_of_keys(alibi: Alibi, count: int) -> torch.Tensor:
    """Return the bias [B or 1, Nq, 1, T] of ``count`` keys."""
    return once(alibi, lambda: alibi.bias(*numbers_of_keys(count)))


def read_slopes(bias: torch.Tensor) -> tuple[float, ...]:
    """Return the slopes of a bias [Nq, T] that a model has computed, or raise NotProven."""
    bias = bias.float()
    slopes = bias[:, 1] - bias[:, 0]
    line = bias[:, :1] + slopes[:, None] * torch.arange(bias.shape[1])
    if not torch.allclose(bias, line, rtol=1e-5, atol=1e-6):
        raise NotProven("its bias does not grow by a slope of each head")
    return tuple(slopes.tolist())
