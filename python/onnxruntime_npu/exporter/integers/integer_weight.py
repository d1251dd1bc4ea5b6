"""A weight as a quantised checkpoint has it: integers, their scales and offsets."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from ...converters.packing import WORD, packed_columns, packed_shape, unpacked_columns
from ..weights.lazy_weight import LazyWeight, value_of

_PART_ELEMENTS = 1 << 20  # of temporaries
FLOAT, DYNAMIC, STATIC = "float", "dynamic", "static"


@dataclass(frozen=True)
class IntegerWeight:
    """``W = (integers + offset) * scale``, [in, out].

    Tensors of the weights of experts have a first axis of these.

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
        fits = bits <= 4 and packed_shape(values.shape) is not None
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
    def remade(
        make: Callable[[], IntegerWeight],
        sizes: tuple[int, ...],
        bits: int,
        groups: int,
        group_size: int,
        *,
        has_offset: bool,
        order: torch.Tensor | None = None,
        activation: str = FLOAT,
        input_scale: torch.Tensor | None = None,
    ) -> IntegerWeight:
        """Return the weight that ``make`` returns, made when its tensors are used.

        ``sizes``: [in, out], or [experts, in, out]; other arguments describe what is made.
        """
        made = _LastMade(make)
        scales = (*sizes[:-2], groups, sizes[-1])
        words = packed_shape(sizes) if bits <= 4 else None

        def offset() -> torch.Tensor:
            found = made.get().offset
            return torch.zeros(scales) if found is None else found

        integers = LazyWeight.computed(
            lambda: made.get().integers.contiguous(),
            sizes if words is None else words,
            torch.int8 if words is None else torch.int32,
        )
        scale = LazyWeight.computed(lambda: made.get().scale, scales, torch.float32)
        offsets = LazyWeight.computed(offset, scales, torch.float32) if has_offset else None
        return IntegerWeight(integers, scale, offsets, group_size, order, activation, input_scale)

    def __deepcopy__(self, memo: dict[int, Any]) -> IntegerWeight:
        """Return the weight itself, which nothing changes: a copy of its model takes no memory."""
        return self

    def made(self) -> IntegerWeight:
        """Return the weight with ordinary tensors, made once."""
        return replace(
            self,
            integers=value_of(self.integers),
            scale=value_of(self.scale),
            offset=None if self.offset is None else value_of(self.offset),
        )

    def with_float_activations(self) -> IntegerWeight:
        """Return the same weight for activations of floats."""
        return replace(self, activation=FLOAT, input_scale=None)

    @property
    def bits(self) -> int:
        """Bits of the type that holds an integer."""
        return 4 if self.integers.dtype == torch.int32 else 8

    @property
    def out_features(self) -> int:
        """Size of the product's last axis."""
        return self.scale.shape[-1]

    @property
    def in_features(self) -> int:
        """Size of the input's last axis."""
        elements = self.integers.shape[-2:].numel() * (WORD if self.bits == 4 else 1)
        return elements // self.out_features

    @property
    def layout(self) -> str:
        """How the integers are stored, for reports."""
        parts = [f"int{self.bits}"]
        if self.scale.shape[-2] > 1:
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
    if not all(stored_alike(first, other) for other in weights[1:]):
        return None
    return IntegerWeight.remade(
        lambda: side_by_side([weight.made() for weight in weights]),
        (first.in_features, sum(weight.out_features for weight in weights)),
        first.bits,
        first.scale.shape[0],
        first.group_size,
        has_offset=any(weight.offset is not None for weight in weights),
        order=first.order,
        activation=first.activation,
        input_scale=first.input_scale,
    )


def stored_alike(first: IntegerWeight, other: IntegerWeight) -> bool:
    """Return whether the outputs of two weights of one input can be those of one weight."""
    return (
        (first.bits, first.group_size, first.activation)
        == (other.bits, other.group_size, other.activation)
        and first.scale.shape[0] == other.scale.shape[0]
        and _equal(first.order, other.order)
        and _equal(first.input_scale, other.input_scale)
    )


def side_by_side(weights: Sequence[IntegerWeight]) -> IntegerWeight:
    """Return one weight with the outputs of all, which are stored alike."""
    first = weights[0]
    if len(weights) == 1:
        return first
    return IntegerWeight.packed(
        torch.cat([weight.values() for weight in weights], 1),
        first.bits,
        torch.cat([weight.scale for weight in weights], 1),
        all_offsets(weights, 1),
        first.group_size,
        first.order,
        first.activation,
        first.input_scale,
    )


def all_offsets(weights: Sequence[IntegerWeight], axis: int) -> torch.Tensor | None:
    """Return the offsets of all along an axis, or None if there are none."""
    if all(weight.offset is None for weight in weights):
        return None
    return torch.cat(
        [
            torch.zeros_like(weight.scale) if weight.offset is None else weight.offset
            for weight in weights
        ],
        axis,
    )


class _LastMade:
    """What a function returns, kept until another one's is made: parts of it are used together."""

    _newest: ClassVar[Callable[[], _LastMade | None]] = staticmethod(lambda: None)

    def __init__(self, make: Callable[[], IntegerWeight]) -> None:
        self._make = make
        self._made: IntegerWeight | None = None

    def get(self) -> IntegerWeight:
        if self._made is None:
            self._forget()
            made = self._make()
            self._forget()  # of what it was made of, too
            self._made = made
            _LastMade._newest = weakref.ref(self)
        return self._made

    @staticmethod
    def _forget() -> None:
        newest = _LastMade._newest()
        if newest is not None:
            newest._made = None


def _equal(first: torch.Tensor | None, second: torch.Tensor | None) -> bool:
    if first is None or second is None:
        return first is second
    return torch.equal(first, second)
