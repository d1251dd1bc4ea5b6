"""The gradient of SwiGLU, for the operator and for its backward operator."""

from onnxruntime_npu.opdef import torch
from onnxruntime_npu.opdef.gradients import silu_gradient


def gradient(dy, x, dim):
    """Return [dy b silu'(a), dy silu(a)] for the halves a, b of x along dim, rounded once."""
    compute = torch.promote_types(x.dtype, torch.float32)
    dy = dy.to(compute)
    size = x.shape[dim] // 2
    a, b = (x.narrow(dim, start, size).to(compute) for start in (0, size))
    return torch.cat((silu_gradient(dy * b, a), dy * torch.nn.functional.silu(a)), dim).to(x.dtype)
