"""Nodes that do not name all of their results: the others are the same, whichever is left out.

An exporter leaves out the name of a result that nothing reads, also between others.
"""

from __future__ import annotations

from typing import Any

import pytest
from onnxruntime_npu.opdef import Op, all_ops
from op_paths import NPU, check_close, make_model, reference, run_model, samples

# Refused unless all are asked for.
TOGETHER = {("npu_fusion_attention_grad", "dk"), ("npu_fusion_attention_grad", "dv")}


def _results() -> list[object]:
    """One parameter per result of each operator that has several."""
    return [
        pytest.param(op, i, id=f"{op.name}-{output.name}")
        for op in all_ops().values()
        if len(op.outputs) > 1
        for i, output in enumerate(op.outputs)
        if i > 0 and not output.variadic  # onnxruntime requires the first
    ]


@pytest.mark.parametrize(("op", "absent"), _results())
def test_others_are_the_same(op: Op, absent: int) -> None:
    dtype = op.sample_dtypes[0]
    sample = samples(op, dtype)[0]
    model = make_model(op, sample, body=False)
    node = model.graph.node[0]
    if len(node.output) <= absent:
        pytest.skip("this call has no such result")
    node.output[absent] = ""
    del model.graph.output[absent]
    if (op.name, op.outputs[absent].name) in TOGETHER:
        with pytest.raises(Exception, match=rf"\[{op.name}\] expected .* to be asked for together"):
            run_model(model, NPU, op, sample)
        return
    got: list[Any] = run_model(model, NPU, op, sample)
    want: list[Any] = reference(op, sample)
    got.insert(absent, None)
    want[absent] = None
    check_close(op, dtype, got, want)
