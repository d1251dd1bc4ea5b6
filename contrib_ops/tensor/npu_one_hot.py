"""One-hot rows with values for on and off. Source: torch_npu.npu_one_hot.

The newest device generation takes num_classes for the number of classes and follows the type of
on_value. Here, as on the generations before it and in their published values, it is the axis of
the classes, and the result is float32. What the newest gives for num_classes=n is
npu_one_hot(self, -1, n, on_value, off_value), converted to the type of on_value.
"""

from onnxruntime_npu.opdef import INDICES, Sample, check, npu_op, torch

op = npu_op(
    "npu_one_hot(Tensor self, int num_classes=-1, int depth=1, Scalar on_value=1,"
    " Scalar off_value=0) -> Tensor",
    onnx="NPUOneHot",
    dtypes={"self": INDICES, "y": ["float32"]},
)

_MOST = 2**31 - 1


@op.reference
def reference(self, num_classes=-1, depth=1, on_value=1, off_value=0):
    """y[.., j, ..] = on_value where self is j, else off_value, as float32.

    self: any shape; y: self's shape with depth more at axis num_classes, -1 for the last. A number
    outside [0, depth) has a row of off_value.
    """
    name, rank = "[npu_one_hot]", self.dim() + 1
    check(
        -rank <= num_classes < rank,
        f"{name} expected num_classes, the axis of the classes, in [{-rank}, {rank - 1}], "
        f"got {num_classes}",
    )
    check(0 <= depth <= _MOST, f"{name} expected depth from 0 to {_MOST}, got {depth}")
    axis = num_classes % rank
    shape = [1] * rank
    shape[axis] = depth
    classes = torch.arange(depth, device=self.device).reshape(shape)
    return torch.where(self.unsqueeze(axis) == classes, float(on_value), float(off_value)).float()


@op.function
def body(b, call, self):
    attrs = call.attrs
    depth = b.const(attrs["depth"], "int64")
    # OneHot counts negative numbers from the end.
    number = b.Cast(self, to="int64")
    number = b.Where(b.Less(number, 0), depth, number)
    values = b.const([attrs["off_value"], attrs["on_value"]], "float32")
    return b.OneHot(number, depth, values, axis=attrs["num_classes"])


@op.samples
def samples(make):
    yield Sample(
        make.tensor([3, 1, 0]),
        -1,
        4,
        id="catalogue",
        expect=[[[0, 0, 0, 1], [0, 1, 0, 0], [1, 0, 0, 0]]],
    )
    yield Sample(make.ints(3, 5, low=-2, high=9, dtype=make.dtype), 1, 6, 2, -1, id="middle_axis")
    yield Sample(make.ints(0, 3, dtype=make.dtype), 0, 4, id="empty")


op.errors(
    lambda make: Sample(make.ints(3), 2, 4),
    match=r"\[npu_one_hot\] expected num_classes, the axis of the classes, in \[-2, 1\], got 2",
    id="axis",
)
op.errors(
    lambda make: Sample(make.ints(3), -1, -1),
    match=r"\[npu_one_hot\] expected depth from 0 to 2147483647, got -1",
    id="depth",
)
