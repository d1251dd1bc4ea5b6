"""One-hot rows with values for on and off. Source: torch_npu.npu_one_hot.

Device generations differ in num_classes. The default is the rule of the generations before the
newest and of their published values: the axis of the classes. To the newest, and with
ORT_NPU_GENERATION=newest, it is the number of classes, or -1 for depth, on the last axis. A call
without it means the same to both. The newest's result has the type of on_value; here it is float32
always, since the attributes of a node do not tell 1 from 1.0.
"""

from onnxruntime_npu.opdef import INDICES, Sample, check, npu_op, torch

from .._generation import is_newest

op = npu_op(
    "npu_one_hot(Tensor self, int num_classes=-1, int depth=1, Scalar on_value=1,"
    " Scalar off_value=0) -> Tensor",
    onnx="NPUOneHot",
    dtypes={"self": INDICES, "y": ["float32"]},
)

_MOST = 2**31 - 1


def _classes(num_classes, depth):
    """Return the axis of the classes, how many they are, and the argument that says so."""
    if not is_newest():
        return num_classes, depth, "depth"
    return (-1, depth, "depth") if num_classes == -1 else (-1, num_classes, "num_classes")


@op.reference
def reference(self, num_classes=-1, depth=1, on_value=1, off_value=0):
    """y[.., j, ..] = on_value where self is j, else off_value, as float32.

    self: any shape; y: self's shape with depth more at axis num_classes, -1 for the last. A number
    outside [0, depth) has a row of off_value.
    """
    name, rank = "[npu_one_hot]", self.dim() + 1
    axis, depth, counted = _classes(num_classes, depth)
    check(
        -rank <= axis < rank,
        f"{name} expected num_classes, the axis of the classes, in [{-rank}, {rank - 1}], "
        f"got {axis}",
    )
    check(0 <= depth <= _MOST, f"{name} expected {counted} from 0 to {_MOST}, got {depth}")
    axis %= rank
    shape = [1] * rank
    shape[axis] = depth
    classes = torch.arange(depth, device=self.device).reshape(shape)
    return torch.where(self.unsqueeze(axis) == classes, float(on_value), float(off_value)).float()


@op.function
def body(b, call, self):
    attrs = call.attrs
    axis, depth, _ = _classes(attrs["num_classes"], attrs["depth"])
    depth = b.const(depth, "int64")
    # OneHot counts negative numbers from the end.
    number = b.Cast(self, to="int64")
    number = b.Where(b.Less(number, 0), depth, number)
    values = b.const([attrs["off_value"], attrs["on_value"]], "float32")
    return b.OneHot(number, depth, values, axis=axis)


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
