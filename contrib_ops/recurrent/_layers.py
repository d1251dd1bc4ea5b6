"""What npu_lstm and npu_gru share: types, checks and gradients."""

from onnxruntime_npu.opdef import check, torch, wide

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


def states_before(initial, states, reverse=False):
    """Return the state before each step, [T, B, H], of the first [1, B, H] and those after."""
    return torch.cat([states[1:], initial] if reverse else [initial, states[:-1]])


def total(*grads, like):
    """Return the sum of gradients, zeros for None, in the precision of the backward pass."""
    given = [wide(grad) for grad in grads if grad is not None]
    return sum(given[1:], given[0]) if given else torch.zeros_like(wide(like))


def product_over_steps(a, b):
    """Return sum over steps and batch of a [T, B, m], transposed, times b [T, B, n]: [m, n]."""
    return a.flatten(0, 1).t() @ b.flatten(0, 1)
