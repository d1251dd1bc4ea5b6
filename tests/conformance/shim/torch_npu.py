"""On the path of the suites' own subprocesses, so that they can ``import torch_npu``."""

import sys

del sys.modules[__name__]  # else this module would count as a torch_npu that is loaded already

import torch_npu_testing  # noqa: E402

torch_npu_testing.install()
