"""The module that the public suites import as ``torch_npu.testing``."""

import importlib
import sys

_PARTS = ("common_utils", "testcase", "decorator", "common_distributed")


def install():
    """Installs onnxruntime_npu as torch_npu, with these helpers as its ``testing``."""
    import onnxruntime_npu

    onnxruntime_npu.install_as_torch_npu()
    onnxruntime_npu.testing = sys.modules["torch_npu.testing"] = sys.modules[__name__]
    sys.modules["onnxruntime_npu.testing"] = sys.modules[__name__]  # of which _internal is a part
    for part in _PARTS:
        sys.modules[f"torch_npu.testing.{part}"] = importlib.import_module(f"{__name__}.{part}")
