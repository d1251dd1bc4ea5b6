"""torch's autocast for the npu device."""

from __future__ import annotations

from typing import Any

import torch

from . import device_type

__all__ = ["autocast"]


class autocast(torch.autocast):
    """``torch.autocast`` for the npu device."""

    def __init__(
        self, enabled: bool = True, dtype: Any = torch.float16, cache_enabled: bool = True
    ) -> None:
        super().__init__(device_type(), dtype, enabled, cache_enabled)
