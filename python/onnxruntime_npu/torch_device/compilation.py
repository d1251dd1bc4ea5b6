"""``torch.compile`` without a backend's name: inductor generates no code for npu."""

from __future__ import annotations

import importlib
import sys
import warnings
from typing import Any

from ..errors import UnsupportedError
from .after_import import after_import

_COMMON, _GRAPH = "torch._inductor.codegen.common", "torch._inductor.graph"


def compile_npu_graphs_without_inductor() -> None:
    """Make inductor, torch's default backend, compile npu graphs with "aot_eager"."""
    import torch

    inductor = torch._TorchCompileInductorWrapper
    original = inductor.__call__

    def compile_graph(self: Any, model_: Any, inputs_: Any, **patches: Any) -> Any:
        values = (node.meta.get("example_value") for node in model_.graph.nodes)
        if not any(isinstance(v, torch.Tensor) and v.device.type == "npu" for v in values):
            return original(self, model_, inputs_, **patches)
        warnings.warn(
            "torch.compile: inductor writes no code for npu; the graph's operators run one by one, "
            'as with backend="aot_eager"',
            stacklevel=2,
        )
        return torch._dynamo.lookup_backend("aot_eager")(model_, inputs_)

    inductor.__call__ = compile_graph  # type: ignore[method-assign]
    after_import(_COMMON, _refuse_code_for_npu)


def _refuse_code_for_npu() -> None:
    """Let inductor's own functions, such as aoti_compile_and_package, say why they fail for npu."""
    common = importlib.import_module(_COMMON)
    original = common.get_device_op_overrides

    def get_device_op_overrides(device: str) -> Any:
        if device == "npu":
            raise UnsupportedError(
                "[torch._inductor] expected tensors of a device that inductor writes code for, "
                "got npu: compile the model with torch.compile(model, backend='aot_eager') to run "
                "it in this process, or store it with onnxruntime_npu.export(model, args, path) "
                "as an ONNX model for onnxruntime"
            )
        return original(device)

    for name in (_COMMON, _GRAPH):  # the second may have imported it from the first
        if name in sys.modules:
            setattr(sys.modules[name], original.__name__, get_device_op_overrides)
