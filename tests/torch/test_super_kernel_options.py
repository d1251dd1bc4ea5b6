"""NPUGraph.super_kernel_optimize checks its options."""

import pytest
import torch

pytestmark = pytest.mark.no_values


def test_super_kernel_options_are_checked():
    graph = torch.npu.NPUGraph()
    graph.super_kernel_optimize({"preload_code": 1, "dcci_after_kernel_end": ["a"]}, None)
    for bad in ({"x": 1}, {"preload_code": "1"}, {"dcci_after_kernel_end": [1]}, "x"):
        with pytest.raises(RuntimeError, match="optimize_options"):
            graph.super_kernel_optimize(optimize_options=bad)
    with pytest.raises(RuntimeError, match="sub_key 'x'"):
        graph.super_kernel_optimize({"aggressive_opt_strategies": {"x": 1}})
