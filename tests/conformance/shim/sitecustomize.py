"""In Python processes that the suites' tests start: ``import torch`` alone brings the device npu.

The real torch_npu does so by an entry point of torch, which the host NPU has no claim to.
"""

import os

if os.environ.get("CONFORMANCE_CHILD"):
    import onnxruntime_npu  # noqa: F401
