"""One-hot rows with values for on and off. Source: torch_npu.npu_one_hot.

Device generations differ in the result's type. The default is the rule of the generations before
the newest and of their published values: float32. To the newest, and with
ORT_NPU_GENERATION=newest, it is the type of on_value, and a depth of -1 is one more than the
greatest number. A node states the type in its attribute dtype, with which it keeps the newest
generation's rules wherever it runs; without it the result is float32. num_classes is the axis of
the classes to all generations, whatever its name says.
"""

from onnxruntime_npu.opdef import (
    INDICES,
    NumberType,
    Sample,
    TypedBy,
    check,
    is_traced,
    npu_op,
    torch,
)
from onnxruntime_npu.opdef.dtypes import NAMES

from .._generation import is_newest

_TYPES = ["float32", "int64", "bool"]

op = npu_op(
    "npu_one_hot(Tensor self, int num_classes=-1, int depth=1, Scalar on_value=1,"
    " Scalar off_value=0) -> Tensor",
    onnx="NPUOneHot",
    attribute_aliases={
        "num_classes": ["num_classses"]
    },  # of early versions of torch_npu's exporter
    dtypes={"self": INDICES, "y": _TYPES},
    number_types={"on_value": NumberType("dtype", stated=is_newest())},
    typed_by={"y": TypedBy("on_value", {name: name for name in _TYPES}, "float32")},
)

_MOST = 2**31 - 1


def _result_type(on_value):
    """Return the type of the result of a call."""
    whole = {bool: torch.bool, int: torch.int64} if is_newest() else {}
    return whole.get(type(on_value), torch.float32)


def _from_values(depth, stated=None):
    """Whether the classes are counted by the numbers; ``stated``: the type in a node, if any."""
    return depth == -1 and (is_newest() or stated is not None)


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
    if _from_values(depth):
        check(
            not is_traced(self) and self.numel() > 0,
            f"{name} expected depth, for a trace or no numbers do not count classes, got -1",
        )
        depth = max(int(self.max()) + 1, 1)
    check(0 <= depth <= _MOST, f"{name} expected depth from 0 to {_MOST}, got {depth}")
    axis = num_classes % rank
    shape = [1] * rank
    shape[axis] = depth
    classes = torch.arange(depth, device=self.device).reshape(shape)
    dtype = _result_type(on_value)
    on, off = (
        torch.tensor(value, dtype=dtype, device=self.device) for value in (on_value, off_value)
    )
    return torch.where(self.unsqueeze(axis) == classes, on, off)


@op.function
def body(b, call, self):
    attrs = call.attrs
    number = b.Cast(self, to="int64")
    if _from_values(attrs["depth"], attrs["dtype"]):
        most = b.ReduceMax(number, keepdims=0)
        depth = b.Max(b.Add(most, 1), b.const(1, "int64"))
    else:
        depth = b.const(attrs["depth"], "int64")
    # OneHot counts negative numbers from the end.
    number = b.Where(b.Less(number, 0), depth, number)
    values = b.const([attrs["off_value"], attrs["on_value"]], "float32")
    hot = b.OneHot(number, depth, values, axis=attrs["num_classes"])
    return b.Cast(hot, to=NAMES[attrs["dtype"]]) if attrs["dtype"] else hot


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
