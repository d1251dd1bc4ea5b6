"""Conversion to another element type.

Source: torch_npu.npu_dtype_cast, npu_dtype_cast_, _npu_dtype_cast and their gradients.
"""

from onnxruntime_npu.opdef import Sample, check, composition, torch

_NAME = "npu_dtype_cast"
# torch's numbers of element types, and torch_npu's of int4.
_TYPES = {
    0: "uint8",
    1: "int8",
    2: "int16",
    3: "int32",
    4: "int64",
    5: "float16",
    6: "float32",
    7: "float64",
    11: "bool",
    15: "bfloat16",
}
_INT4 = 285

op = composition(
    f"{_NAME}(Tensor self, int dtype, int? input_dtype=None) -> Tensor",
    dtypes=["float32", "float16", "bfloat16", "int32", "uint8", "bool"],
)


def _packed(values):
    """Return two neighbours of the last axis in a byte, the first in the lower half."""
    check(
        values.dim() > 0 and values.shape[-1] % 2 == 0 and not values.is_floating_point(),
        f"[{_NAME}] expected integers with a last axis of even size for int4, "
        f"got {values.dtype} {list(values.shape)}",
    )
    low, high = (values.to(torch.int32) & 15).unflatten(-1, (-1, 2)).unbind(-1)
    return (low + high * 16).to(torch.uint8)


@op.function
def npu_dtype_cast(self, dtype, input_dtype=None):
    """Return self as dtype, a torch type or its number; self itself if it has that type.

    Floats are truncated to integers, and everything but 0 is true. int4 (285) packs the last axis,
    two values a byte, as uint8. input_dtype may only name self's own type: this device has none of
    the types that a tensor can be taken for.
    """
    check(
        input_dtype is None or getattr(torch, _TYPES.get(input_dtype, ""), None) == self.dtype,
        f"[{_NAME}] expected input_dtype None or the type of self, {self.dtype}, got {input_dtype}",
    )
    if dtype == _INT4:
        return _packed(self)
    check(
        dtype in _TYPES,
        f"[{_NAME}] expected dtype {', '.join(_TYPES.values())} or int4, got {dtype}",
    )
    return self.to(getattr(torch, _TYPES[dtype]))


@op.partner("_npu_dtype_cast(Tensor self, ScalarType dtype) -> Tensor")
def _npu_dtype_cast(self, dtype):
    """Return self as dtype."""
    return self.to(dtype)


@op.partner("npu_dtype_cast_(Tensor(a!) self, Tensor src) -> Tensor(a!)")
def npu_dtype_cast_(self, src):
    """Write src, converted, over self."""
    check(
        self.shape == src.shape,
        f"[{_NAME}_] expected src of shape {list(self.shape)}, got {list(src.shape)}",
    )
    return self.copy_(src)


@op.partner(
    "npu_dtype_cast_backward(Tensor grad, ScalarType dtype, int? grad_dtype=None,"
    " int? input_dtype=None) -> Tensor"
)
def npu_dtype_cast_backward(grad, dtype, grad_dtype=None, input_dtype=None):
    """Return the gradient as dtype, the type that was converted."""
    return grad.to(dtype)


@op.partner("_npu_dtype_cast_backward(Tensor grad, ScalarType dtype) -> Tensor")
def _npu_dtype_cast_backward(grad, dtype):
    """Return the gradient as dtype, the type that was converted."""
    return grad.to(dtype)


@op.samples
def samples(make):
    if make.dtype == "float32":
        values = make.tensor([1.9, -1.9])
        yield Sample(values, torch.int32, id="catalogue", expect=[[1, -1]])
        yield Sample(values, 11, id="to_bool", expect=[[True, True]])
    if make.dtype == "int32":
        four = make.tensor([1, 2, 3, -4])
        yield Sample(four, _INT4, torch.int32, id="to_int4", expect=[[33, 195]])
    yield Sample(make(3, 4), torch.float16, id="to_float16")
    yield Sample(make(0, 4), torch.int64, id="empty")


op.errors(
    lambda make: Sample(make(3), 291),
    match=r"\[npu_dtype_cast\] expected dtype uint8, .* or int4, got 291",
    id="dtype",
)
op.errors(
    lambda make: Sample(make.ints(3), _INT4),
    match=r"\[npu_dtype_cast\] expected integers with a last axis of even size for int4, "
    r"got torch.int64 \[3\]",
    id="odd",
)
op.errors(
    lambda make: Sample(make(3), 3, 290),
    match=r"\[npu_dtype_cast\] expected input_dtype None or the type of self, torch.float32, "
    r"got 290",
    id="input_dtype",
)
