"""A weight as a quantised checkpoint has it: integers, their scales and offsets."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from ...converters.packing import WORD, packed_columns, unpacked_columns
from ..weights.lazy_weight import LazyWeight, value_of

_PART_ELEMENTS = 1 << 20  # of temporaries
FLOAT, DYNAMIC, STATIC = "float", "dynamic", "static"


@dataclass(frozen=True)
class IntegerWeight:
    """``W = (integers + offset) * scale``, [in, out].

    Attributes:
        integers: int8 [in, out], or int4 in words of int32, [in, out / 8] or [in / 8, out].
        scale: float32 [groups, out].
        offset: float32 [groups, out]; None: zeros.
        group_size: rows that share a scale; the last group may be smaller.
        order: int64 [in], the input feature of each row; None: row i is feature i.
        activation: ``"float"``; ``"dynamic"``: int8 with a scale for each token; ``"static"``: int8
            with the scale ``input_scale``.
        input_scale: float32 [1] or None.

    """

    integers: torch.Tensor
    scale: torch.Tensor
    offset: torch.Tensor | None
    group_size: int
    order: torch.Tensor | None = None
    activation: str = FLOAT
    input_scale: torch.Tensor | None = None

    @staticmethod
    def packed(
        values: torch.Tensor,
        bits: int,
        scale: torch.Tensor,
        offset: torch.Tensor | None,
        group_size: int,
        order: torch.Tensor | None = None,
        activation: str = FLOAT,
        input_scale: torch.Tensor | None = None,
    ) -> IntegerWeight:
        """Return the weight of int8 values [in, out], in words if they have 4 bits or fewer."""
        fits = bits <= 4 and any(size % WORD == 0 for size in values.shape)
        return IntegerWeight(
            packed_columns(values) if fits else values.contiguous(),
            scale.float().contiguous(),
            None if offset is None or not offset.any() else offset.float().contiguous(),
            group_size,
            order,
            activation,
            input_scale,
        )

    @staticmethod
    def remade(make: Callable[[], IntegerWeight]) -> IntegerWeight:
        """Return the weight that ``make`` returns, made again when its tensors are used."""
        first = make()

        def part(name: str) -> torch.Tensor | None:
            given: torch.Tensor | None = getattr(first, name)
            if given is None:
                return None
            return LazyWeight.computed(
                lambda: value_of(getattr(_made(make), name)), given.shape, given.dtype
            )

        integers, scale, offset = part("integers"), part("scale"), part("offset")
        assert integers is not None and scale is not None
        return replace(first, integers=integers, scale=scale, offset=offset)

    @property
    def bits(self) -> int:
        """Bits of the type that holds an integer."""
        return 4 if self.integers.dtype == torch.int32 else 8

    @property
    def out_features(self) -> int:
        """Size of the product's last axis."""
        return self.scale.shape[1]

    @property
    def in_features(self) -> int:
        """Size of the input's last axis."""
        elements = self.integers.numel() * (WORD if self.bits == 4 else 1)
        return elements // self.out_features

    @property
    def layout(self) -> str:
        """How the integers are stored, for reports."""
        parts = [f"int{self.bits}"]
        if self.scale.shape[0] > 1:
            parts.append(f"groups of {self.group_size}")
        if self.activation != FLOAT:
            parts.append(f"{self.activation} int8 activations")
        return ", ".join(parts)

    def values(self) -> torch.Tensor:
        """Return the integers as int8 [in, out]."""
        if self.bits == 8:
            return self.integers
        return unpacked_columns(value_of(self.integers), self.in_features, self.out_features)

    def floats(self) -> torch.Tensor:
        """Return the weight as torch.nn.Linear has it: float32 [out, in]."""
        group = torch.arange(self.in_features) // self.group_size
        weight = value_of(self.values()).to(torch.float32)
        scale, offset = value_of(self.scale), None if self.offset is None else value_of(self.offset)
        rows = max(1, _PART_ELEMENTS // self.out_features)
        for part, its_group in zip(weight.split(rows), group.split(rows), strict=True):
            if offset is not None:
                part += offset[its_group]
            part *= scale[its_group]
        if self.order is not None:
            ordered = torch.empty_like(weight)
            ordered[self.order] = weight
            weight = ordered
        return weight.t()


def joined(weights: Sequence[IntegerWeight]) -> IntegerWeight | None:
    """Return one weight with the outputs of all, or None if they are stored differently.

    It is joined when its tensors are used: memory holds the integers once.
    """
    first = weights[0]
    if len(weights) == 1:
        return first
    for other in weights[1:]:
        alike = (
            (first.bits, first.group_size, first.activation)
            == (other.bits, other.group_size, other.activation)
            and first.scale.shape[0] == other.scale.shape[0]
            and _equal(first.order, other.order)
            and _equal(first.input_scale, other.input_scale)
        )
        if not alike:
            return None
    return IntegerWeight.remade(lambda: _joined(weights))


def _joined(weights: Sequence[IntegerWeight]) -> IntegerWeight:
    first = weights[0]
    offset = None
    if any(w.offset is not None for w in weights):
        offset = torch.cat(
            [torch.zeros_like(w.scale) if w.offset is None else w.offset for w in weights], 1
        )
    return IntegerWeight.packed(
        torch.cat([w.values() for w in weights], 1),
        first.bits,
        torch.cat([w.scale for w in weights], 1),
        offset,
        first.group_size,
        first.order,
        first.activation,
        first.input_scale,
    )


@functools.lru_cache(maxsize=1)
def _made(make: Callable[[], IntegerWeight]) -> IntegerWeight:
    """Return what ``make`` returns; the last one is kept for its other tensors."""
    return make()


def _equal(first: torch.Tensor | None, second: torch.Tensor | None) -> bool:
    if first is None or second is None:
        return first is second
    return torch.equal(first, second)
