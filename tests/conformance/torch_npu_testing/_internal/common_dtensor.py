"""The base of the suites' tests of DTensor, ``torch_npu.testing._internal.common_dtensor``."""

import torch
from torch.testing._internal.distributed._tensor.common_dtensor import DTensorTestBase


class NPUDTensorTestBase(DTensorTestBase):
    """Ranks on npu devices: as many as there are, up to four."""

    @property
    def device_type(self):
        return "npu"

    @property
    def world_size(self):
        return min(4, torch.npu.device_count()) if torch.npu.device_count() > 1 else 4
