"""Registers the operators and the device as soon as torch is imported, without importing it."""

from __future__ import annotations

import warnings

from .after_import import after_import


def define_operators_with_torch() -> None:
    """Define the operators now if torch is loaded, otherwise right after its import."""
    after_import("torch", _define)


def _define() -> None:
    try:
        from ..opdef.torch_library import register

        if not register():  # the real torch_npu owns both names
            return
    except Exception as error:  # torch's import must not fail because of this package
        warnings.warn(f"onnxruntime_npu could not define torch.ops.npu: {error}", stacklevel=2)
    try:
        from .. import torch_device

        if torch_device.is_built():
            torch_device.register()
    except Exception as error:
        warnings.warn(f"torch has no device 'npu': {error}", stacklevel=2)
