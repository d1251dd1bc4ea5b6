"""Repetition along axes of size 1, copied. Source: torch_npu.npu_broadcast."""

from onnxruntime_npu.opdef import Sample, check, composition

from ._shapes import OF_EACH_SIZE, check_count, copied

op = composition(
    "npu_broadcast(Tensor self, int[] size) -> Tensor",
    out="npu_broadcast.out(Tensor self, int[] size, *, Tensor(a!) out) -> Tensor(a!)",
    dtypes=OF_EACH_SIZE,
    differentiable=True,
    file_type="NPUBroadcast",
)


@op.function
def npu_broadcast(self, size):
    """Return self expanded to size, contiguous, in memory of its own.

    size: the last sizes are self's where those are not 1; -1 keeps one; axes in front are new.
    """
    own = [None] * (len(size) - self.dim()) + list(self.shape)
    check(
        len(size) >= self.dim()
        and all(
            (n >= 0 and m in (None, 1, n)) or (n == -1 and m is not None)
            for n, m in zip(size, own, strict=True)
        ),
        f"[npu_broadcast] expected a size that {list(self.shape)} expands to, got {list(size)}",
    )
    check_count("npu_broadcast", [m if n == -1 else n for n, m in zip(size, own, strict=True)])
    return copied(self.expand(size))


@op.samples
def samples(make):
    if make.dtype != "bool":
        column = make.tensor([[1], [2], [3]])
        yield Sample(column, [3, 2], id="catalogue", expect=[[[1, 1], [2, 2], [3, 3]]])
    yield Sample(make(3, 1), [2, -1, 4], id="new_axis")
    yield Sample(make(1, 4), [0, 4], id="empty")


op.errors(
    lambda make: Sample(make(2, 3), [2, 4]),
    match=r"\[npu_broadcast\] expected a size that \[2, 3\] expands to, got \[2, 4\]",
    id="size",
)
op.errors(
    lambda make: Sample(make(2, 3), [3]),
    match=r"\[npu_broadcast\] expected a size that \[2, 3\] expands to, got \[3\]",
    id="rank",
)
op.errors(
    lambda make: Sample(make(1, 3), [2**40, 2**40, 3]),
    match=r"\[npu_broadcast\] expected a shape whose number of elements fits int64, "
    r"got \[1099511627776, 1099511627776, 3\]",
    id="overflow",
)
