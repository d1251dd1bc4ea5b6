"""Lets subprocesses of the suites ``import torch_npu``."""

import sys

del sys.modules[__name__]  # otherwise this module would be taken for the real torch_npu

import torch_npu_testing  # noqa: E402

torch_npu_testing.install()
