"""``torch.compile`` without a backend's name: inductor generates no code for npu."""

from __future__ import annotations

import warnings
from typing import Any


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
