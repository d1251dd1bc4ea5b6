import pytest

pytest.register_assert_rewrite("row_calls")


@pytest.fixture(autouse=True)
def _leave_the_device_as_it_was():
    from onnxruntime_npu import npu

    yield
    npu.set_per_process_memory_fraction(1.0)
    npu.set_device(0)
    npu.set_stream(npu.default_stream())
