"""Zeros around a tensor. Source: torch_npu.npu_pad."""

from onnxruntime_npu.opdef import Sample, check, composition, torch

from ._shapes import OF_EACH_SIZE, check_count, copied

op = composition(
    "npu_pad(Tensor input, int[] paddings) -> Tensor", dtypes=OF_EACH_SIZE, differentiable=True
)


@op.function
def npu_pad(input, paddings):
    """Return input with zeros before and after, in memory of its own.

    paddings: how many before and behind each axis from the FIRST on, unlike
    torch.nn.functional.pad; axes without any keep their size.
    """
    check(
        len(paddings) % 2 == 0
        and len(paddings) <= 2 * input.dim()
        and all(n >= 0 for n in paddings),
        "[npu_pad] expected paddings of two numbers >= 0 for each of at most "
        f"{input.dim()} axes, got {list(paddings)}",
    )
    full = [*paddings, *[0] * (2 * input.dim() - len(paddings))]
    check_count("npu_pad", [n + full[2 * i] + full[2 * i + 1] for i, n in enumerate(input.shape)])
    last_axis_first = [n for i in range(input.dim()) for n in full[-2 * i - 2 : len(full) - 2 * i]]
    return copied(torch.nn.functional.pad(input, last_axis_first))


@op.samples
def samples(make):
    if make.dtype != "bool":
        yield Sample(
            make.tensor([[1, 2], [3, 4]]),
            [1, 0, 0, 2],
            id="catalogue",
            expect=[[[0, 0, 0, 0], [1, 2, 0, 0], [3, 4, 0, 0]]],
        )
    yield Sample(make(2, 3, 4), [0, 1, 2, 0], id="two_of_three_axes")
    yield Sample(make(0, 2), [1, 1], id="empty")


op.errors(
    lambda make: Sample(make(2, 3), [1, 2, 3]),
    match=r"\[npu_pad\] expected paddings of two numbers >= 0 for each of at most 2 axes, "
    r"got \[1, 2, 3\]",
    id="odd",
)
op.errors(
    lambda make: Sample(make(2, 3), [1, -2]),
    match=r"\[npu_pad\] expected paddings of two numbers >= 0 for each of at most 2 axes, "
    r"got \[1, -2\]",
    id="negative",
)
op.errors(
    lambda make: Sample(make(2, 3), [0, 2**62, 1, 2**63 - 1]),
    match=r"\[npu_pad\] expected a shape whose number of elements fits int64, "
    r"got \[4611686018427387906, 9223372036854775811\]",
    id="overflow",
)
