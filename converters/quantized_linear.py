"""What takes the place of torch.nn.Linear: quantised weights and the fused operator of a scheme."""

from __future__ import annotations

import torch

from .compensated_rounding import compensated_columns
from .input_scales import InputScales
from .packing import WORD, packed_columns
from .rounding import quantized_columns
from .schemes import Scheme


class WeightOnlyLinear(torch.nn.Module):
    """A linear layer whose int8 or int4 weight is multiplied as floats.

    Buffers: ``weight`` int8 [in, out], or int4 packed in int32, [in, out / 8] or [in / 8, out];
    ``scale`` [1, out], or [groups, out], of the activations' dtype, ``offset`` of the same shape or
    None; ``bias`` as the operator takes it.
    """

    weight: torch.Tensor
    scale: torch.Tensor
    offset: torch.Tensor | None
    bias: torch.Tensor | None

    def __init__(
        self,
        weight: torch.Tensor,
        scale: torch.Tensor,
        bias: torch.Tensor | None,
        *,
        in_features: int,
        offset: torch.Tensor | None = None,
        group_size: int = 0,
        inner_precise: int = 0,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, scale.shape[-1]
        self.group_size, self.inner_precise = group_size, inner_precise
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)
        self.register_buffer("offset", offset)
        if bias is not None and scale.dtype == torch.bfloat16:
            bias = bias.float()
        self.register_buffer("bias", None if bias is None else bias.detach().clone())

    @staticmethod
    def rounded(
        linear: torch.nn.Linear, scheme: Scheme, group_size: int, inner_precise: int
    ) -> WeightOnlyLinear:
        """Return the layer with its weight rounded by a scheme."""
        dtype, size = linear.weight.dtype, linear.in_features
        scheme.check_dtype(dtype)
        # The operator's groups are shorter than the depth; one group is a scale per column.
        group_size = group_size if scheme.grouped and group_size < size else 0
        weight, scale = quantized_columns(linear.weight, scheme.weight_bits, group_size, dtype)
        return WeightOnlyLinear(
            packed_columns(weight) if scheme.weight_bits == 4 else weight,
            scale,
            linear.bias,
            in_features=size,
            group_size=group_size,
            inner_precise=inner_precise,
        )

    @staticmethod
    def compensated(
        linear: torch.nn.Linear, moments: torch.Tensor, group_size: int, inner_precise: int
    ) -> WeightOnlyLinear:
        """Return the layer with int4 weights chosen for second moments of its inputs."""
        dtype, size = linear.weight.dtype, linear.in_features
        group_size = group_size if group_size < size else 0
        weight, scale, offset = compensated_columns(linear.weight, moments, group_size, dtype)
        return WeightOnlyLinear(
            packed_columns(weight),
            scale,
            linear.bias,
            offset=offset,
            in_features=size,
            group_size=group_size,
            inner_precise=inner_precise,
        )

    @property
    def operators(self) -> dict[str, int]:
        """The operators of a call and how many."""
        return {"npu_weight_quant_batchmatmul": 1}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x @ W + bias; x: [.., in_features]."""
        rows = x.reshape(-1, self.in_features)
        y = torch.ops.npu.npu_weight_quant_batchmatmul(
            rows, self.weight, self.scale, self.offset, bias=self.bias,
            antiquant_group_size=self.group_size, inner_precise=self.inner_precise,
        )  # fmt: skip
        return y.reshape(*x.shape[:-1], self.out_features)


class IntegerLinear(torch.nn.Module):
    """A linear layer that multiplies int8 activations and int8 weights exactly in int32.

    Buffers: ``weight`` int8 [in, out]; ``scale`` float32 [out], of activations and weights if
    activations are ``static``, else of weights; ``bias``; ``input_scale``: what static activations
    are divided by, float32 [1] or [in], or what others are multiplied by before each row gets its
    scale, [in] of the activations' dtype, or None; ``offset``: what is added to the integers of
    each column of the weight, float32 [out] or None.
    """

    weight: torch.Tensor
    scale: torch.Tensor
    bias: torch.Tensor | None
    input_scale: torch.Tensor | None
    offset: torch.Tensor | None

    def __init__(
        self,
        weight: torch.Tensor,
        scale: torch.Tensor,
        bias: torch.Tensor | None,
        *,
        static: bool = False,
        input_scale: torch.Tensor | None = None,
        offset: torch.Tensor | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = weight.shape
        self.static = static
        self.register_buffer("offset", offset)
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)
        self.register_buffer("bias", None if bias is None else bias.detach().float().clone())
        self.register_buffer("input_scale", input_scale)

    @staticmethod
    def rounded(linear: torch.nn.Linear, scales: InputScales | None) -> IntegerLinear:
        """Return the layer with its weight rounded; without ``scales`` each row has its own."""
        factors = step = input_scale = None
        if scales is not None:
            device, dtype = linear.weight.device, linear.weight.dtype
            factors = None if scales.factors is None else scales.factors.to(device)
            if scales.step is not None:
                step = torch.tensor([scales.step], device=device)
                input_scale = step if factors is None else step * factors
            elif factors is not None:
                input_scale = (1 / factors).to(dtype)
                factors = 1 / input_scale.float()  # the inverse of what is stored
        weight, scale = quantized_columns(linear.weight, 8, 0, torch.float32, factors)
        return IntegerLinear(
            weight,
            scale[0] if step is None else scale[0] * step,
            linear.bias,
            static=step is not None,
            input_scale=input_scale,
        )

    @property
    def operators(self) -> dict[str, int]:
        """The operators of a call and how many."""
        rounding = "npu_quantize" if self.static else "npu_dynamic_quant"
        return {rounding: 1, "npu_quant_matmul": 1}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x @ W + bias of x's dtype; x: [.., in_features]."""
        rows = x.reshape(-1, self.in_features)
        of_rows = None
        if self.static:
            integers = torch.ops.npu.npu_quantize(rows, self.input_scale, None, torch.qint8, -1)
        else:
            integers, of_rows = torch.ops.npu.npu_dynamic_quant(
                rows, smooth_scales=self.input_scale
            )
        if x.dtype in (torch.float16, torch.bfloat16) and self.offset is None:
            y = torch.ops.npu.npu_quant_matmul(
                integers, self.weight, self.scale, pertoken_scale=of_rows, bias=self.bias,
                output_dtype=x.dtype,
            )  # fmt: skip
        else:
            y = self._in_float32(integers, of_rows).to(x.dtype)
        return y.reshape(*x.shape[:-1], self.out_features)

    def _in_float32(self, integers: torch.Tensor, of_rows: torch.Tensor | None) -> torch.Tensor:
        """Multiply integers [rows, in], of which those of a row have a scale, or all have one.

        The operator has no float32 results, and rounded ones would lose what an offset leaves.
        """
        sums = torch.ops.npu.npu_quant_matmul(
            integers, self.weight, self.scale, output_dtype=torch.int32
        )
        y = sums.float()
        if self.offset is not None:
            y = y + integers.float().sum(-1, keepdim=True) * self.offset
        y = y * self.scale
        if of_rows is not None:
            y = y * of_rows[:, None]
        return y if self.bias is None else y + self.bias


class GroupedIntegerLinear(torch.nn.Module):
    """A linear layer that multiplies int8 activations, with a scale per token, and int4 weights.

    Buffers: ``weight`` int4 packed in int32, [in, out / 8] or [in / 8, out]; ``scale`` float32
    [groups, out]; ``offset`` float32 [out], which the operator needs for its way to multiply; and
    ``bias``.
    """

    weight: torch.Tensor
    scale: torch.Tensor
    offset: torch.Tensor
    bias: torch.Tensor | None

    def __init__(
        self,
        values: torch.Tensor,
        scale: torch.Tensor,
        bias: torch.Tensor | None,
        group_size: int,
    ) -> None:
        """Take int4 values [in, out], not yet packed, in groups that divide the inputs."""
        super().__init__()
        self.in_features, self.out_features = values.shape
        self.group_size = group_size
        self.register_buffer("weight", packed_columns(values))
        self.register_buffer("scale", scale)
        self.register_buffer("offset", shifted_back(values, scale))
        self.register_buffer("bias", None if bias is None else bias.detach().clone())

    @staticmethod
    def rounded(linear: torch.nn.Linear, scheme: Scheme, group_size: int) -> GroupedIntegerLinear:
        """Return the layer with its weight rounded."""
        scheme.check_dtype(linear.weight.dtype)
        size = linear.in_features
        if size % WORD:
            raise ValueError(
                f"[quantize_weights] expected in_features to be a multiple of 8 for {scheme.name}, "
                f"got {size}; leave the layer out with skip="
            )
        # Groups of the operator divide the depth; one group is a scale per column.
        group_size = group_size if size % group_size == 0 else size
        values, scale = quantized_columns(linear.weight, 4, group_size, torch.float32)
        return GroupedIntegerLinear(values, scale, linear.bias, group_size)

    @property
    def operators(self) -> dict[str, int]:
        """The operators of a call and how many."""
        return {"npu_dynamic_quant": 1, "npu_quant_matmul": 1}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x @ W + bias of x's dtype; x: [.., in_features]."""
        integers, scale = torch.ops.npu.npu_dynamic_quant(x.reshape(-1, self.in_features))
        y = torch.ops.npu.npu_quant_matmul(
            integers, self.weight, self.scale, offset=self.offset, pertoken_scale=scale,
            group_sizes=[0, 0, self.group_size], output_dtype=x.dtype,
        )  # fmt: skip
        y = y.reshape(*x.shape[:-1], self.out_features)
        return y if self.bias is None else y + self.bias


def shifted_back(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return 8 times the sums of the columns of a weight.

    The device subtracts 8 from int8 activations in products with int4, and has this added.

    Args:
        weight: integers [.., in, out].
        scale: float32 [.., groups, out]; groups divide the rows.

    Returns:
        float32 [.., out].

    """
    length = weight.shape[-2] // scale.shape[-2]
    return 8 * (weight.float() * scale.repeat_interleave(length, -2)).sum(-2)
