"""Makes ``import torch`` alone register the npu device in processes started by the suites' tests.

The real torch_npu does so by an entry point of torch, which this package does not install.
"""

import os

if os.environ.get("CONFORMANCE_CHILD"):
    import onnxruntime_npu  # noqa: F401
