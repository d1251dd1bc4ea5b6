"""npu_max and npu_min: what the extremes along an axis share."""

from onnxruntime_npu.opdef import FLOATS, Sample, check, check_dtype, composition

from ._shapes import check_axis


def check_reduction(op, tensor, dim):
    """Refuse types and axes of which there is no extreme."""
    check_dtype(op, "self", tensor, [*FLOATS, "float64"])
    check_axis(op, dim, tensor.dim())
    check(
        tensor.dim() == 0 or tensor.shape[dim] > 0,
        f"[{op}] expected an axis with elements, got shape {list(tensor.shape)} and dim {dim}",
    )


def spread(grad, dim, indices, sizes, keepdim):
    """Return the gradient of the operator's argument, of shape ``sizes``."""
    if not keepdim and len(sizes):
        grad, indices = grad.unsqueeze(dim), indices.unsqueeze(dim)
    return grad.new_zeros(sizes).scatter(dim, indices.long(), grad)


def extreme(name, known, expect):
    """Define the operator but for its function; ``expect``: results of the sample ``known``."""
    op = composition(
        f"{name}.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)",
        dtypes=["float32", "float16"],
        differentiable=True,
    )
    op.partner(
        f"{name}_backward(Tensor grad, int dim, Tensor indices, SymInt[] sizes, bool keepdim)"
        " -> Tensor"
    )(spread)

    @op.samples
    def samples(make):
        rows = make.tensor([[1, 5, 5], [7, 2, 0]])
        yield Sample(rows, 1, id=known, expect=expect)
        yield Sample(make(3, 4, 5), -2, True, id="kept_axis")
        yield Sample(make(0, 3), 1, id="empty")

    op.errors(
        lambda make: Sample(make(2, 3), 2),
        match=rf"\[{name}\] expected dim in \[-2, 1\], got 2",
        id="dim",
    )
    op.errors(
        lambda make: Sample(make(2, 0), 1),
        match=rf"\[{name}\] expected an axis with elements, got shape \[2, 0\] and dim 1",
        id="nothing",
    )
    return op
