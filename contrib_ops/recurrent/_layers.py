"""What npu_lstm and npu_gru share: types, checks and gradients."""

from onnxruntime_npu.opdef import check, torch

FLOATS = ["float32", "float16"]


def check_tensors(op, input, **shapes):
    """Refuse tensors of other shapes than given, or of another dtype than the input."""
    for name, (tensor, shape) in shapes.items():
        check(
            list(tensor.shape) == shape,
            f"[{op}] expected {name} of shape {shape}, got {list(tensor.shape)}",
        )
        check(
            tensor.dtype == input.dtype,
            f"[{op}] expected {name} of the dtype of input, {input.dtype}, got {tensor.dtype}",
        )


def nothing(count, shape, *tensors):
    """Return results without elements that are functions of the tensors."""
    zero = sum(tensor.flatten()[:0].sum() for tensor in tensors)
    return tuple(tensors[0].new_zeros(shape) + zero for _ in range(count))


def gradients(layer, results, grads, *arguments):
    """Return the gradients of a layer's arguments for those of its first results, None for none."""
    used = [i for i, grad in enumerate(grads) if grad is not None]

    def chosen(*values):
        return tuple(layer(*values)[i] for i in used)

    _, pullback = torch.func.vjp(chosen, *arguments)
    return pullback(tuple(grads[i].to(arguments[0].dtype) for i in used))
