"""Quantised weights of a proven decoder, by ``onnxruntime_npu.converters.quantize_weights``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from ..errors import ArgumentError, ExportError
from .interfaces import Interface
from .proof import Findings
from .roles.linear import Linear

NONE = "none"
# Integers of 4 bits are packed in words of eight, along the inputs or the outputs.
_IN_WORD = 8


def schemes() -> tuple[str, ...]:
    """Return the names of the choices."""
    from ..converters import SCHEMES

    return (NONE, *SCHEMES)


def check_scheme(name: str, dtype: torch.dtype, calibration: Any) -> None:
    """Refuse a scheme with a dtype or calibration that it does not take."""
    from ..converters import SCHEMES

    scheme = SCHEMES.get(name)
    if (calibration is not None) != (scheme is not None and scheme.activation == "static"):
        raise ArgumentError(
            f"expected calibration with quant='w8a8' and only then, got quant={name!r} "
            f"{'without' if calibration is None else 'with'} it"
        )
    if scheme is None:
        return
    try:
        scheme.check_dtype(dtype)
    except ValueError as error:
        raise ArgumentError(
            f"expected dtype float16 or bfloat16 with quant={name!r}, got {dtype}"
        ) from error


def quantize(
    interface: Interface,
    scheme: str,
    calibration: Iterable[tuple[Any, ...]] | None,
    findings: Findings,
) -> None:
    """Quantise the projections and experts of a decoder, in place.

    The head, and layers that a scheme cannot take, stay floats and are listed. ``calibration``:
    arguments of the interface, for w8a8.
    """
    from ..converters import quantize_weights

    for name, module in list(interface.named_modules()):
        if isinstance(module, Linear):
            interface.set_submodule(name, module.as_torch())
    skip = _skipped(interface, scheme, findings)
    try:
        quantize_weights(interface, scheme, calibration=calibration, skip=skip)
    except ValueError as error:
        raise ExportError(str(error)) from error
    for module in interface.modules():
        operators: dict[str, int] = getattr(module, "operators", {})
        for op, count in operators.items():
            findings.quantized(op, count)


def _skipped(interface: Interface, scheme: str, findings: Findings) -> list[str]:
    """Return the names of layers that stay floats: the head, routers, and what does not fit."""
    from ..converters import SCHEMES

    chosen, decoder = SCHEMES[scheme], interface.decoder
    skipped = []
    for name, module in interface.named_modules():
        if not isinstance(module, nn.Linear):
            continue
        sizes = (module.in_features, module.out_features)
        # Integer activations need whole words along the inputs; else either axis will do.
        packed = sizes[:1] if chosen.activation != "float" else sizes
        fits = chosen.weight_bits != 4 or any(size % _IN_WORD == 0 for size in packed)
        if module.weight is decoder.head_weight or _routes(interface, name):
            skipped.append(name)
        elif not fits or module.weight.dtype != decoder.dtype:
            why = f"{sizes[0]} x {sizes[1]} of {module.weight.dtype} does not fit {scheme}"
            findings.keep(name, "linear", f"not quantised: {why}")
            skipped.append(name)
    return skipped


def _routes(interface: Interface, name: str) -> bool:
    """Whether a layer is a router's: it lies under a gate or router beside experts."""
    path = name.split(".")
    for i, part in enumerate(path):
        if part in ("gate", "router"):
            owner = interface.get_submodule(".".join(path[:i]))
            if hasattr(owner, "experts"):
                return True
    return False
