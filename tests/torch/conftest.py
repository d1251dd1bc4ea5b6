import importlib.util

import onnxruntime_npu
import pytest

pytest.register_assert_rewrite("against_cpu")

HAS_DEVICE = importlib.util.find_spec("onnxruntime_npu._torch_build") is not None
# Without torch, or in a build without it, these tests do not apply.
collect_ignore_glob = [] if HAS_DEVICE else ["test_*.py"]

if HAS_DEVICE:
    from onnxruntime_npu import torch_device


@pytest.fixture(autouse=True)
def clean_counts():
    """Each test counts its own fallbacks and leaves no error or work behind."""
    torch_device.reset_fallback_counts()
    yield
    onnxruntime_npu.npu.synchronize()


@pytest.fixture
def no_fallback():
    """Checks that all operators of the test have kernels."""
    yield
    assert torch_device.fallback_counts() == {}
