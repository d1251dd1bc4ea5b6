"""What the examples that train do: train on npu, export, and compare the ways of running."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnxruntime as ort
import onnxruntime_npu
import torch

NPU, CPU = "NPUExecutionProvider", "CPUExecutionProvider"


def train(
    model: torch.nn.Module,
    draw: Callable[[torch.Generator], tuple[torch.Tensor, ...]],
    steps: int,
    learning_rate: float,
) -> list[float]:
    """Train on npu with Adam, and return the loss of each step.

    Args:
        model: a module with a method ``loss`` of what ``draw`` returns.
        draw: returns the tensors of a step, on the CPU.
        steps: how many.
        learning_rate: Adam's.
    """
    model = model.npu().train()
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(steps):
        loss = model.loss(*(tensor.npu() for tensor in draw(generator)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def largest_difference(
    module: torch.nn.Module, image: torch.Tensor, path: Path, providers: tuple[str, ...]
) -> dict[str, float]:
    """Export the module to ``path``; return by provider how far it is from the eager results.

    Raises if a provider gives other shapes, or if nodes of the NPU session run elsewhere.

    Args:
        module: takes one tensor and returns a tuple of tensors, on npu and on the CPU.
        image: what it is called with, on the CPU.
        path: of the ONNX file.
        providers: which to compare; the CPU's runs the nodes by their portable bodies.
    """
    module = module.eval()
    with torch.no_grad():
        eager = [result.cpu() for result in module.npu()(image.npu())]
        results = {"eager on the CPU": list(module.cpu()(image))}
    onnxruntime_npu.export(module, (image,), path)
    for provider in providers:
        session = ort.InferenceSession(path, providers=[provider])
        if provider == NPU:
            elsewhere = [
                node["op_type"]
                for node in onnxruntime_npu.assignment(session)
                if node["domain"] == "npu" and node["provider"] != NPU
            ]
            if elsewhere:
                raise RuntimeError(f"not on the NPU: {elsewhere}")
        feeds = {session.get_inputs()[0].name: image.numpy()}
        results[provider] = [torch.from_numpy(y) for y in session.run(None, feeds)]
    return {
        name: max(_difference(got, want) for got, want in zip(theirs, eager, strict=True))
        for name, theirs in results.items()
    }


def _difference(got: torch.Tensor, want: torch.Tensor) -> float:
    if got.shape != want.shape or got.dtype != want.dtype:
        raise RuntimeError(f"expected {want.dtype} {list(want.shape)}, got {got.dtype} {got.shape}")
    return float((got.double() - want.double()).abs().max())
