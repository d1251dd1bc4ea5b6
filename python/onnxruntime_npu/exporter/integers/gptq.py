"""GPTQ: words along the inputs, a zero point for each group, input features perhaps by importance.

Layout as AutoGPTQ and GPTQModel write it: ``qweight`` int32 [in * bits / 32, out], ``qzeros`` int32
[groups, out * bits / 32], ``scales`` [groups, out], ``g_idx`` int32 [in].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .bits import unpacked
from .format import Format, Layer, bits_of, check_shape, group_size, taken
from .integer_weight import IntegerWeight


class Gptq(Format):
    """``W[i, o] = (q[i, o] - zero[g_idx[i], o]) * scale[g_idx[i], o]``."""

    method = "gptq"

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        layout = config.get("checkpoint_format") or config.get("format") or "gptq"
        if config.get("is_marlin_format"):
            layout = "marlin"
        if layout not in ("gptq", "gptq_v2"):
            raise ValueError(f"expected checkpoint_format gptq or gptq_v2, got {layout!r}")
        # The first version of the layout stores zero points less one.
        self._missing = 1 if layout == "gptq" else 0

    def read(self, layer: Layer, tensors: Mapping[str, torch.Tensor]) -> IntegerWeight:
        """Return the weight of a layer."""
        rows, columns = layer.sizes
        words, scale = taken(tensors, "qweight"), taken(tensors, "scales")
        bits = bits_of("qweight", words.shape[0], rows, self.config.get("bits"))
        check_shape("qweight", words, words.shape[0], columns)
        groups = scale.shape[0]
        check_shape("scales", scale, groups, columns)
        of_row = tensors.get("g_idx")
        # A layer may have groups of another size than the configuration: of its own rule.
        first = 0 if of_row is None else int((of_row == 0).sum())
        size = group_size(rows, groups, first or self.config.get("group_size"))
        middle = 2 ** (bits - 1)
        values = unpacked(words, bits, rows) - middle
        zeros = self._zeros(taken(tensors, "qzeros"), bits, columns)
        check_shape("qzeros", zeros, groups, columns)
        order = _order(of_row, rows, groups, size)
        if order is not None:
            values = values[order]
        return IntegerWeight.packed(
            values.to(torch.int8), bits, scale, (middle - zeros).float(), size, order
        )

    def _zeros(self, words: torch.Tensor, bits: int, columns: int) -> torch.Tensor:
        """Return the zero points [groups, columns]."""
        missing = self._missing
        if missing and 32 % bits == 0:
            # GPTQModel takes one from all in a word at once: a zero point of 0 borrows from the
            # next one, and has it back when ones are added to the word, which may wrap.
            words, missing = words + sum(1 << at for at in range(0, 32, bits)), 0
        zeros = unpacked(words.t().contiguous(), bits, columns).t()
        return (zeros + missing) & (2**bits - 1)


def _order(of_row: torch.Tensor | None, rows: int, groups: int, size: int) -> torch.Tensor | None:
    """Return the input features sorted by their group; None if they are."""
    in_order = torch.arange(rows) // size
    if of_row is None or torch.equal(of_row.long(), in_order):
        return None
    check_shape("g_idx", of_row, rows)
    order = torch.argsort(of_row.long(), stable=True)
    if not torch.equal(of_row.long()[order], in_order):
        raise ValueError(f"expected g_idx with {size} rows in each of {groups} groups")
    return order
