"""Cross entropy of rows of logits with rows of probabilities.

Source: torch_npu.npu_softmax_cross_entropy_with_logits. Its gradient there takes every row of
labels to sum to 1, also one of zeros, whose loss is 0; here it is the derivative of the loss.
"""

from onnxruntime_npu.opdef import Sample, check, npu_op, wide

_FLOATS = ["float32", "float16"]
_NAME = "npu_softmax_cross_entropy_with_logits"

op = npu_op(
    f"{_NAME}(Tensor self, Tensor labels) -> Tensor",
    onnx="NPUSoftmaxCrossEntropyWithLogits",
    dtypes={"self": _FLOATS, "labels": _FLOATS, "y": _FLOATS},
)


def _check(self, labels):
    check(
        self.dim() == 2 and labels.shape == self.shape and labels.dtype == self.dtype,
        f"[{_NAME}] expected self [B, K] and labels like it, "
        f"got {self.dtype} {list(self.shape)} and {labels.dtype} {list(labels.shape)}",
    )


@op.reference
def reference(self, labels):
    """y = -sum over k of labels * log_softmax(self), [B], in float32 and rounded once.

    self: [B, K]; labels: like self.
    """
    _check(self, labels)
    return -(wide(labels) * wide(self).log_softmax(1)).sum(1).to(self.dtype)


@op.function
def body(b, call, self, labels):
    log = b.LogSoftmax(b.Cast(self, to="float32"), axis=1)
    loss = b.Neg(b.ReduceSum(b.Mul(b.Cast(labels, to="float32"), log), [1], keepdims=0))
    return b.Cast(loss, to=call.dtype("self"))


def _gradients(grad, self, labels):
    x, weights = wide(self), wide(labels)
    dloss = wide(grad)[:, None]
    dself = dloss * (x.softmax(1) * weights.sum(1, keepdim=True) - weights)
    return dself.to(self.dtype), -(dloss * x.log_softmax(1)).to(labels.dtype)


@op.backward("self", "labels")
def backward(grad_y, self, labels):
    return _gradients(grad_y, self, labels)


@op.partner(f"{_NAME}_backward(Tensor grad, Tensor self, Tensor labels) -> Tensor")
def npu_softmax_cross_entropy_with_logits_backward(grad, self, labels):
    """Return the gradient of the logits for the gradient of the loss, [B]."""
    _check(self, labels)
    return _gradients(grad, self, labels)[0]


@op.samples
def samples(make):
    yield Sample(
        make.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]),
        make.tensor([[0.0, 0.0, 1.0], [0.5, 0.5, 0.0]]),
        id="catalogue",
        expect=[[0.407606, 1.098612]],
    )
    yield Sample(make(7, 33), make.uniform(7, 33).float().softmax(1).to(make(0)), id="random")
    yield Sample(make(0, 5), make(0, 5), id="empty")


op.errors(
    lambda make: Sample(make(2, 3), make(2, 4)),
    match=rf"\[{_NAME}\] expected self \[B, K\] and labels like it, "
    r"got .* \[2, 3\] and .* \[2, 4\]",
    id="labels",
)
op.errors(
    lambda make: Sample(make(2, 3, 4), make(2, 3, 4)),
    match=rf"\[{_NAME}\] expected self \[B, K\] and labels like it, got .*\[2, 3, 4\]",
    id="rank",
)
