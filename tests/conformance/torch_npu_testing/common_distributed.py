"""Conditions of tests that need several devices, or collectives, which the host NPU lacks."""

import functools
import unittest

import torch


def skipIfUnsupportMultiNPU(npu_number_needed):
    """Skips a test that needs more devices than there are, or collectives between them."""

    def decorate(function):
        @functools.wraps(function)
        def run(self, *args, **kwargs):
            if torch.npu.device_count() < npu_number_needed:
                raise unittest.SkipTest(f"needs {npu_number_needed} devices")
            return function(self, *args, **kwargs)

        return run

    return decorate


def with_comms(function):
    """Skips a test of collectives."""

    @functools.wraps(function)
    def run(self, *args, **kwargs):
        raise unittest.SkipTest("needs collectives (HCCL), which the host NPU does not have")

    return run
