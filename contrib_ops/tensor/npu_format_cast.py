"""Another storage format, which the values do not show. Source: torch_npu._npu_format_cast.

What torch_npu's exporter writes for npu_format_cast, before and after operators whose device wants
tiles. Here a format is only a label of an eager tensor's storage, and a node copies: the partner
npu_format_cast gives the label, and calls this in a trace.
"""

from onnxruntime_npu.opdef import FIXED_WIDTH, Sample, check, npu_op, torch

from ._shapes import copied

# Of Format in torch_npu_compat/formats.py.
_FORMATS = [-1, 0, 1, 2, 3, 4, 12, 16, 27, 29, 30, 32, 33, 35, 47, 50, 51, 52, 53, 54]

op = npu_op(
    "_npu_format_cast(Tensor self, int acl_format) -> Tensor",
    onnx="NPUFormatCast",
    dtypes={"self": FIXED_WIDTH, "y": FIXED_WIDTH},
    may_alias=[("self", "y")],
    ignored_attributes=["customize_dtype", "input_dtype"],
    sample_dtypes=["float32", "float16", "int64", "bool"],
)


@op.reference
def reference(self, acl_format):
    """y = self, contiguous, in memory of its own.

    acl_format: the number of a format; no format changes the shape or the values.
    """
    check(
        acl_format in _FORMATS,
        f"[_npu_format_cast] expected acl_format of {', '.join(map(str, _FORMATS))}, "
        f"got {acl_format}",
    )
    return copied(self)


@op.function
def body(b, call, self):
    return b.Identity(self)


@op.backward("self")
def backward(grad_y):
    """The gradient as it is."""
    return grad_y.clone()


_SCHEMA = "Tensor self, {what}, *, int? customize_dtype=None, int? input_dtype=None"


@op.partner("_npu_format_cast.aclnn(Tensor self, int acl_format, int customize_dtype) -> Tensor")
def with_tiles_of(self, acl_format, customize_dtype):
    """Cast with a type of tiles, which has no effect."""
    return torch.ops.npu._npu_format_cast.default(self, acl_format)


@op.partner(
    "_npu_format_cast.input_dtype(Tensor self, int acl_format, int customize_dtype,"
    " int input_dtype) -> Tensor"
)
def with_bytes_of(self, acl_format, customize_dtype, input_dtype):
    """Cast with a type of tiles and one of bytes, which have no effect."""
    return torch.ops.npu._npu_format_cast.default(self, acl_format)


@op.partner(f"npu_format_cast.Tensor({_SCHEMA.format(what='Tensor dst')}) -> Tensor")
def to_that_of(self, dst, **arguments):
    """Return the tensor in the format of another; see the overload with a number."""
    from onnxruntime_npu.torch_npu_compat.formats import npu_format_cast

    return npu_format_cast(self, dst, **arguments)


@op.partner(f"npu_format_cast({_SCHEMA.format(what='int acl_format')}) -> Tensor")
def to_number(self, acl_format, **arguments):
    """Return the tensor in another format, a label of its storage; see Format.

    self: on an npu. A private format is kept only while torch.npu.config.allow_internal_format is
    True. The result is the tensor itself if nothing changes. In a trace it is a copy.
    """
    from onnxruntime_npu.torch_npu_compat.formats import npu_format_cast

    return npu_format_cast(self, acl_format, **arguments)


@op.samples
def samples(make):
    yield Sample(make.tensor([[1, 0], [0, 1]]), 29, id="tiles", expect=[[[1, 0], [0, 1]]])
    yield Sample(make(2, 3, 4).transpose(0, 2), 2, id="view")
    yield Sample(make(0, 3), -1, id="empty")


op.errors(
    lambda make: Sample(make(2, 2), 77),
    match=r"\[_npu_format_cast\] expected acl_format of -1, 0, 1, .*, 54, got 77",
    id="format",
)
