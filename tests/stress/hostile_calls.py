"""Calls of `npu::` operators on npu tensors that break their rules; see hostile.py."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnxruntime_npu
import torch
from hostile import REALS, WORDS, other_list, other_number, other_shape, other_values
from onnxruntime_npu.opdef import Maker, Op, all_ops

torch.set_num_threads(1)


@cache
def operators() -> list[Op]:
    """Those that need no other ranks."""
    return [op for op in all_ops().values() if op.sample_function and "hcom" not in str(op.schema)]


@cache
def samples(name: str, dtype: str) -> list:
    op = all_ops()[name]
    assert op.sample_function
    return list(op.sample_function(Maker(dtype)))


def make_call(rng: np.random.Generator) -> str:
    """Makes a changed call; says whether it had a result or what refused it."""
    op = operators()[rng.integers(len(operators()))]
    dtype = op.sample_dtypes[rng.integers(len(op.sample_dtypes))]
    choice = samples(op.name, dtype)
    sample = choice[rng.integers(len(choice))]
    arguments = dict(op.bind(sample.args, sample.kwargs))
    for _ in range(int(rng.integers(1, 4))):
        name = list(arguments)[rng.integers(len(arguments))]
        arguments[name] = changed(rng, arguments[name])
    try:
        given = {name: on_device(rng, value) for name, value in arguments.items()}
        getattr(onnxruntime_npu, op.name)(**given)
        torch.npu.synchronize()
    except Exception as error:
        return f"{op.name} {dtype}: {error}"
    return f"{op.name} {dtype}: a result"


def changed(rng: np.random.Generator, value: Any) -> Any:
    """Another argument, mostly of the same kind."""
    if rng.random() < 0.05:
        return None
    if isinstance(value, torch.Tensor):
        return changed_tensor(rng, value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return other_number(rng, value)
    if isinstance(value, float):
        return REALS[rng.integers(len(REALS))]
    if isinstance(value, str):
        return WORDS[rng.integers(len(WORDS))]
    if isinstance(value, (list, tuple)) and value:
        if all(type(x) is int for x in value):
            return other_list(rng, list(value))
        at, out = int(rng.integers(len(value))), list(value)
        if rng.random() < 0.3:
            del out[at]
        else:
            out[at] = changed(rng, out[at])
        return out
    return value


def changed_tensor(rng: np.random.Generator, tensor: torch.Tensor) -> torch.Tensor:
    kind = rng.integers(0, 8)
    if kind == 0:
        types = [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8,
                 torch.uint8, torch.bool, torch.float64]  # fmt: skip
        return tensor.to(types[rng.integers(len(types))])
    if kind < 4:
        shape = other_shape(rng, tuple(tensor.shape))
        flat = tensor.reshape(-1)
        count = int(np.prod(shape))
        if flat.numel() == 0:
            return tensor.new_zeros(shape)
        return flat.repeat(count // flat.numel() + 1)[:count].reshape(shape)
    if tensor.dtype in (torch.bool,) or tensor.is_complex() or tensor.dtype.itemsize == 0:
        return ~tensor if tensor.dtype == torch.bool else tensor
    if (
        tensor.dtype in (torch.float32, torch.float64, torch.float16)
        or not tensor.dtype.is_floating_point
    ):
        return torch.from_numpy(other_values(rng, tensor.contiguous().numpy()))
    return torch.from_numpy(other_values(rng, tensor.float().contiguous().numpy())).to(tensor.dtype)


def on_device(rng: np.random.Generator, value: Any) -> Any:
    """The argument with its tensors on the device, some of them with strides."""
    if isinstance(value, (list, tuple)):
        return [on_device(rng, x) for x in value]
    if not isinstance(value, torch.Tensor):
        return value
    there = value.npu()
    if rng.random() < 0.15 and there.dim() >= 2:
        return there.transpose(0, -1).contiguous().transpose(0, -1)
    if rng.random() < 0.1 and there.dim() >= 1:
        return torch.stack([there, there], -1)[..., 1]
    return there.clone()
