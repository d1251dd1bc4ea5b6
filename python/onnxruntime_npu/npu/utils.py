"""``torch.npu.utils``: overflow checks, and the versions that scripts query.

The host NPU follows IEEE 754: overflow gives infinity (INF_NAN mode). It has no saturation mode
and no overflow flag.
"""

from __future__ import annotations

import math
import sys
import warnings
from typing import Any

from .devices import get_device_name

__all__ = [
    "clear_npu_overflow_flag",
    "get_cann_version",
    "get_npu_overflow_flag",
    "get_soc_version",
    "is_support_inf_nan",
    "npu_check_overflow",
]

# torch_npu's numbers of Ascend's products.
_SOC_VERSIONS = {
    name: first + step
    for first, names in (
        (100, "Ascend910PremiumA Ascend910ProA Ascend910A Ascend910ProB Ascend910B"),
        (200, "Ascend310P1 Ascend310P2 Ascend310P3 Ascend310P4 Ascend310P5 Ascend310P7"),
        (220, "Ascend910B1 Ascend910B2 Ascend910B2C Ascend910B3 Ascend910B4 Ascend910B4-1"),
        (240, "Ascend310B1 Ascend310B2 Ascend310B3 Ascend310B4"),
        (250, "Ascend910_9391 Ascend910_9392 Ascend910_9381 Ascend910_9382 Ascend910_9372"),
        (255, "Ascend910_9362 Ascend910_9363"),
    )
    for step, name in enumerate(names.split())
}


def get_soc_version() -> int:
    """Return torch_npu's number of the product that ORT_NPU_DEVICE_NAME names, -1 for none."""
    return _SOC_VERSIONS.get(get_device_name(), -1)


def is_support_inf_nan() -> bool:
    """Return True: overflow gives infinity."""
    return True


def npu_check_overflow(grad: Any) -> bool:
    """Return whether a float, or the float32 sum of a tensor, is infinite or NaN.

    Raises:
        RuntimeError: ``grad`` is neither.
    """
    if isinstance(grad, float):
        return not math.isfinite(grad)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(grad, torch.Tensor):
        return not math.isfinite(float(grad.detach().float().sum()))
    raise RuntimeError(f"Unsupported type. expected a float or a tensor, got {type(grad).__name__}")


def get_npu_overflow_flag() -> bool:
    """Not supported in INF_NAN mode.

    Raises:
        RuntimeError: always: use npu_check_overflow.
    """
    raise RuntimeError(
        "get_npu_overflow_flag is not supported in INF_NAN mode, the host NPU's only one; use "
        "npu_check_overflow"
    )


def clear_npu_overflow_flag() -> None:
    """Do nothing, with a warning: INF_NAN mode has no flag."""
    warnings.warn("clear_npu_overflow_flag does nothing in INF_NAN mode", stacklevel=2)


def get_cann_version(module: str = "CANN") -> str:
    """Return the version of a component of CANN: empty, as for one that is not installed."""
    return ""


def _is_gte_cann_version(version: str, module: str = "CANN") -> bool:
    """Return False: CANN is not installed."""
    return False
