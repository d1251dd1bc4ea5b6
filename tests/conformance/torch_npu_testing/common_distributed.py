"""Conditions of tests that need several devices, and the group of their ranks."""

import contextlib
import functools
import os
import unittest

import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import TestSkip

# What a rank without enough devices ends with, and says.
TEST_SKIPS = {
    f"multi-npu-{count}": TestSkip(75, f"needs {count} npu devices") for count in range(1, 9)
}


def skipIfUnsupportMultiNPU(npu_number_needed):
    """Skips a test that needs more devices than there are."""

    def decorate(function):
        @functools.wraps(function)
        def run(self, *args, **kwargs):
            if torch.npu.device_count() < npu_number_needed:
                raise unittest.SkipTest(f"needs {npu_number_needed} devices")
            return function(self, *args, **kwargs)

        return run

    return decorate


def init_pg(backend="hccl", world_size=1, rank=0, file_name=""):
    """Joins the group of all ranks, which find each other by a file, and takes a device."""
    method = f"file://{file_name}"
    dist.init_process_group(backend, init_method=method, world_size=world_size, rank=rank)
    if backend == "hccl":
        torch.npu.set_device(rank)


@contextlib.contextmanager
def _dynamo_dist_per_rank_init(rank, world_size, init_pg_=True):
    """A device, and the group of all ranks unless ``init_pg_`` is false, to compile calls."""
    torch.npu.set_device(rank)
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "6789"}
    if init_pg_:
        dist.init_process_group("hccl", rank=rank, world_size=world_size)
    _forget_compiled()
    try:
        yield
    finally:
        _forget_compiled()
        if init_pg_:
            dist.destroy_process_group()


def _forget_compiled():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def with_comms(function):
    """Runs a rank's test in the group of all ranks: over "hccl" if each has a device, or gloo."""

    @functools.wraps(function)
    def run(self, *args, **kwargs):
        backend = "hccl" if torch.npu.device_count() >= self.world_size else "gloo"
        init_pg(backend, self.world_size, self.rank, self.file_name)
        torch.npu.manual_seed(0)
        function(self, *args, **kwargs)
        self.destroy_pg()

    return run
