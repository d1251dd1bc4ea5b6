"""AWQ: words along the outputs, interleaved, and a zero point for each group.

Layout as AutoAWQ writes it for ``version: gemm``: ``qweight`` int32 [in, out / 8], ``qzeros`` int32
[groups, out / 8], ``scales`` [groups, out].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .bits import unpacked
from .format import Format, Layer, bits_of, check_shape, group_size, taken
from .integer_weight import IntegerWeight

# Where each integer of a word belongs among the eight outputs that it covers.
_OUTPUTS = [0, 2, 4, 6, 1, 3, 5, 7]


class Awq(Format):
    """``W[i, o] = (q[i, o] - zero[g, o]) * scale[g, o]`` with i in group g."""

    method = "awq"

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        version = str(config.get("version", "gemm")).lower()
        if version != "gemm":
            raise ValueError(f"expected the AWQ version gemm, got {version!r}")

    def read(self, layer: Layer, tensors: Mapping[str, torch.Tensor]) -> IntegerWeight:
        """Return the weight of a layer."""
        rows, columns = layer.sizes
        words, scale = taken(tensors, "qweight"), taken(tensors, "scales")
        bits = bits_of("qweight", words.shape[1], columns)
        if bits != 4:
            raise ValueError(f"expected AWQ weights of 4 bits, got {bits}")
        check_shape("qweight", words, rows, words.shape[1])
        groups = scale.shape[0]
        check_shape("scales", scale, groups, columns)
        size = group_size(rows, groups, self.config.get("group_size"))
        zeros = _outputs(taken(tensors, "qzeros"), columns)
        check_shape("qzeros", zeros, groups, columns)
        values = _outputs(words, columns) - 8
        return IntegerWeight.packed(values.to(torch.int8), bits, scale, (8 - zeros).float(), size)


def _outputs(words: torch.Tensor, columns: int) -> torch.Tensor:
    """Return the integers [rows, columns] of words [rows, columns / 8]."""
    stored = unpacked(words.t().contiguous(), 4, columns).t()
    eights = stored.unflatten(1, (-1, 8))
    return eights[..., torch.tensor(_OUTPUTS).argsort()].flatten(1)
