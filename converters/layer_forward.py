"""What layers compute while a model runs for calibration."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch

_Forward = Callable[[str, torch.nn.Linear, torch.Tensor], torch.Tensor]


@contextlib.contextmanager
def computed_by(forward: _Forward, layers: Mapping[str, torch.nn.Linear]) -> Iterator[None]:
    """Let ``forward(name, layer, input)`` compute the outputs of the layers meanwhile."""
    # Their own, where another library has set one.
    before = [(layer, layer.__dict__.get("forward")) for layer in layers.values()]
    try:
        for name, layer in layers.items():
            layer.__dict__["forward"] = partial(forward, name, layer)
        yield
    finally:
        for layer, own in before:
            del layer.__dict__["forward"]
            if own is not None:
                layer.__dict__["forward"] = own


def in_float32(_: str, layer: torch.nn.Linear, given: torch.Tensor) -> torch.Tensor:
    """Multiply in float32, and round the result to the input's dtype."""
    bias = None if layer.bias is None else layer.bias.float()
    result = torch.nn.functional.linear(given.float(), layer.weight.float(), bias)
    return result.to(given.dtype)


def without_products(layers: Mapping[str, torch.nn.Linear]) -> dict[str, torch.nn.Linear]:
    """Return the layers on the CPU of whose 16-bit floats torch has no products there.

    Where a processor has no AVX-512, torch adds up bfloat16 and float16 in loops that take several
    times as long as float32.
    """
    slow = {
        dtype
        for dtype, is_supported in (
            (torch.bfloat16, "_is_mkldnn_bf16_supported"),
            (torch.float16, "_is_mkldnn_fp16_supported"),
        )
        # A torch for other processors, or a later one, need not have these.
        if not getattr(torch.ops.mkldnn, is_supported, lambda: True)()
    }
    return {
        name: layer
        for name, layer in layers.items()
        if layer.weight.dtype in slow and layer.weight.device.type == "cpu"
    }
