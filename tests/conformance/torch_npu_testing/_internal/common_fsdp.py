"""The base of the suites' tests of FSDP, ``torch_npu.testing._internal.common_fsdp``."""

import sys

import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import TEST_SKIPS
from torch.testing._internal.common_fsdp import FSDPTest


class FSDPNPUTest(FSDPTest):
    """Ranks on npu devices, in the group "hccl": as many as there are, from two to four."""

    @property
    def world_size(self):
        return min(4, max(2, torch.npu.device_count()))

    @classmethod
    def _run(cls, rank, test_name, file_name, pipe, **kwargs):
        self = cls(test_name)
        self.rank, self.file_name = rank, file_name
        if torch.npu.device_count() < self.world_size:
            sys.exit(TEST_SKIPS[f"multi-gpu-{self.world_size}"].exit_code)
        torch.npu.set_device(rank)
        dist.init_process_group(
            "hccl", init_method=self.init_method, world_size=self.world_size, rank=rank
        )
        torch.manual_seed(0)
        self.run_test(test_name, pipe)
        dist.barrier()
        dist.destroy_process_group()
