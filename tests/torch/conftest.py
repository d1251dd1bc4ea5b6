import pytest

torch = pytest.importorskip("torch")

import onnxruntime_npu  # noqa: E402
from onnxruntime_npu import torch_device  # noqa: E402

if not torch_device.is_built():
    pytest.skip("this build has no torch device", allow_module_level=True)


@pytest.fixture(autouse=True)
def clean_counts():
    """Each test counts its own fallbacks and leaves no error or work behind."""
    torch_device.reset_fallback_counts()
    yield
    onnxruntime_npu.npu.synchronize()


@pytest.fixture
def no_fallback():
    """The test's operators all have kernels."""
    yield
    assert torch_device.fallback_counts() == {}
