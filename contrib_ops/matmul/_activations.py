"""Activations between or after matmuls, by name, in float32."""

from onnxruntime_npu.opdef import torch


def activated(values, name):
    """Return the activation of float32 values; None leaves them as they are."""
    if name == "relu":
        return torch.relu(values)
    if name == "gelu":
        return torch.nn.functional.gelu(values)
    if name == "gelu_tanh":
        return torch.nn.functional.gelu(values, approximate="tanh")
    if name == "fast_gelu":
        return values * torch.sigmoid(1.702 * values)
    return torch.nn.functional.silu(values) if name == "silu" else values


def body_activated(b, values, name):
    """Build activated."""
    if name == "relu":
        return b.Relu(values)
    if name == "gelu":
        return b.Mul(b.Mul(values, 0.5), b.Add(b.Erf(b.Mul(values, 0.7071067811865476)), 1.0))
    if name == "gelu_tanh":
        cubed = b.Mul(b.Mul(b.Mul(values, values), values), 0.044715)
        inner = b.Mul(b.Add(values, cubed), 0.7978845608028654)
        return b.Mul(b.Mul(values, 0.5), b.Add(b.Tanh(inner), 1.0))
    if name == "fast_gelu":
        return b.Mul(values, b.Sigmoid(b.Mul(values, 1.702)))
    return b.Mul(values, b.Sigmoid(values)) if name == "silu" else values
