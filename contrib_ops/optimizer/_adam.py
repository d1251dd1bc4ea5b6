"""What the two forms of Adam share: the tensors they update, and the call that has none."""

from onnxruntime_npu.errors import ArgumentError
from onnxruntime_npu.opdef import check, check_dtype

FLOATS = ["float32", "float16"]


def without_out(op):
    """Raise what a call without tensors to update gives."""
    raise ArgumentError(f"[{op}] expected out=(var, m, v), the tensors to update, got none")


def updated(op, grad, out):
    """Return var, m and v after checking that they are like the gradient."""
    check(len(out) == 3, f"[{op}] expected out of var, m and v, got {len(out)} tensors")
    check_dtype(op, "grad", grad, FLOATS)
    for name, tensor in zip(("var", "m", "v"), out, strict=True):
        check(
            tensor.shape == grad.shape and tensor.dtype == grad.dtype,
            f"[{op}] expected {name} like grad, {grad.dtype} {list(grad.shape)}, "
            f"got {tensor.dtype} {list(tensor.shape)}",
        )
    return out


def write(out, values):
    """Write the new values, rounded once, and return the tensors."""
    for tensor, value in zip(out, values, strict=True):
        tensor.copy_(value)
    return tuple(out)
