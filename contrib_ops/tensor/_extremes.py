"""What the extremes along an axis share."""

from onnxruntime_npu.opdef import check

from ._shapes import check_axis


def check_reduction(op, tensor, dim):
    """Refuse an axis that is not there or has no elements."""
    check_axis(op, dim, tensor.dim())
    check(
        tensor.dim() == 0 or tensor.shape[dim] > 0,
        f"[{op}] expected an axis with elements, got shape {list(tensor.shape)} and dim {dim}",
    )


def spread(grad, dim, indices, sizes, keepdim):
    """Return zeros of the given sizes with the gradient at the places along dim."""
    if not keepdim and len(sizes):
        grad, indices = grad.unsqueeze(dim), indices.unsqueeze(dim)
    return grad.new_zeros(sizes).scatter(dim, indices.long(), grad)
