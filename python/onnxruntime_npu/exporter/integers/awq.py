"""AWQ: words along the outputs, interleaved, or along the inputs; a zero point for each group.

Layouts as AutoAWQ writes them. ``version: gemm``: ``qweight`` int32 [in, out / 8], ``qzeros`` int32
[groups, out / 8], ``scales`` [groups, out]; auto-round writes 5 to 7 bits so, too. ``version:
gemv``: ``qweight`` [out, in / 8], ``qzeros`` [out, groups / 8], ``scales`` [out, groups], the last
two with more groups than the layer has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .bits import unpacked
from .format import Format, Layer, bits_of, check_shape, group_size, taken
from .integer_weight import IntegerWeight

# Where each of eight integers belongs among the eight outputs that they cover.
_OUTPUTS = [0, 2, 4, 6, 1, 3, 5, 7]


class Awq(Format):
    """``W[i, o] = (q[i, o] - zero[g, o]) * scale[g, o]`` with i in group g."""

    method = "awq"

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        version = str(config.get("version") or config.get("format") or "gemm").lower()
        if version not in ("gemm", "gemv"):
            raise ValueError(
                f"expected the AWQ version gemm or gemv, got {version!r}: quantise the model again "
                f"with version gemm"
            )
        self._along_inputs = version == "gemv"

    def read(self, layer: Layer, tensors: Mapping[str, torch.Tensor]) -> IntegerWeight:
        """Return the weight of a layer."""
        return self._gemv(layer, tensors) if self._along_inputs else self._gemm(layer, tensors)

    def _gemm(self, layer: Layer, tensors: Mapping[str, torch.Tensor]) -> IntegerWeight:
        rows, columns = layer.sizes
        words, scale = taken(tensors, "qweight"), taken(tensors, "scales")
        bits = bits_of("qweight", words.shape[1], columns, self.config.get("bits"))
        if bits not in range(4, 8):
            raise ValueError(f"expected AWQ weights of 4 to 7 bits, got {bits}")
        check_shape("qweight", words, rows, words.shape[1])
        groups, middle = scale.shape[0], 2 ** (bits - 1)
        check_shape("scales", scale, groups, columns)
        size = group_size(rows, groups, self.config.get("group_size"))
        zeros = _outputs(taken(tensors, "qzeros"), bits, columns)
        check_shape("qzeros", zeros, groups, columns)
        values = (_outputs(words, bits, columns) - middle).to(torch.int8)
        return IntegerWeight.packed(values, bits, scale, (middle - zeros).float(), size)

    def _gemv(self, layer: Layer, tensors: Mapping[str, torch.Tensor]) -> IntegerWeight:
        rows, columns = layer.sizes
        words, scale = taken(tensors, "qweight"), taken(tensors, "scales")
        check_shape("qweight", words, columns, -(-rows // 8))
        declared = self.config.get("group_size")
        size = declared if isinstance(declared, int) and declared > 0 else rows
        groups = -(-rows // size)
        # Kernels read several words of zero points at once: the last ones may be of no group.
        padded = taken(tensors, "qzeros").shape[-1] * 8
        check_shape("scales", scale, columns, padded)
        zeros = unpacked(tensors["qzeros"].t().contiguous(), 4, padded)
        if groups > padded:
            raise ValueError(f"expected scales of {groups} groups of {size}, got {padded}")
        check_shape("qzeros", zeros, padded, columns)
        values = (unpacked(words.t().contiguous(), 4, rows) - 8).to(torch.int8)
        offset = (8 - zeros[:groups]).float()
        return IntegerWeight.packed(values, 4, scale.t()[:groups], offset, size)


def _outputs(words: torch.Tensor, bits: int, columns: int) -> torch.Tensor:
    """Return the integers [rows, columns] of words [rows, columns * bits / 32]."""
    stored = unpacked(words.t().contiguous(), bits, columns).t()
    eights = stored.unflatten(1, (-1, 8))
    return eights[..., torch.tensor(_OUTPUTS).argsort()].flatten(1)
