"""Inductor's own functions, which write no code for npu, say so and what to do."""

import pytest
import torch


def test_ahead_of_time_compilation_is_refused():
    model = torch.nn.Linear(4, 4).npu()
    exported = torch.export.export(model, (torch.ones(2, 4, device="npu"),))
    with pytest.raises(Exception, match=r"got npu: compile .*aot_eager.*onnxruntime_npu\.export"):
        torch._inductor.aoti_compile_and_package(exported)


def test_inductor_compiles_for_the_cpu_as_before():
    from torch._inductor.codegen.common import get_device_op_overrides

    assert get_device_op_overrides("cpu") is not None
