"""Ones over a tensor. Source: torch_npu.one_."""

from onnxruntime_npu.opdef import Sample, composition

op = composition(
    "one_(Tensor(a!) self) -> Tensor(a!)", dtypes=["float32", "float16", "int64", "uint8", "bool"]
)


@op.function
def one_(self):
    """Write 1, or true, over every element and return self."""
    return self.fill_(1)


@op.samples
def samples(make):
    yield Sample(make.tensor([[0, 2], [3, 0]]), id="by_hand", expect=[[[1, 1], [1, 1]]])
    yield Sample(make(0, 4), id="empty")
