"""Log-softmax and negative log-likelihood in one. Source: torch_npu.npu_cross_entropy_loss."""

from onnxruntime_npu.opdef import FLOATS, Sample, check, check_indices, npu_op, torch

op = npu_op(
    "npu_cross_entropy_loss(Tensor input, Tensor target, Tensor? weight=None,"
    " str reduction='mean', int ignore_index=-100, float label_smoothing=0.0,"
    " float lse_square_scale_for_zloss=0.0, bool return_zloss=False)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    onnx="NPUCrossEntropyLoss",
    outputs=["loss", "log_prob", "zloss", "lse_for_zloss"],
    dtypes={
        "input": FLOATS,
        "target": ["int64"],
        "weight": ["float32"],
        "loss": FLOATS,
        "log_prob": FLOATS,
        "zloss": FLOATS,
        "lse_for_zloss": FLOATS,
    },
)


def _check(condition, message):
    check(condition, f"[npu_cross_entropy_loss] {message}")


def _check_call(input, target, weight, reduction, ignore_index, label_smoothing):
    _check(
        reduction in ("mean", "sum", "none"),
        f"expected reduction mean, sum or none, got '{reduction}'",
    )
    _check(
        0 <= label_smoothing < 1,
        f"expected label_smoothing in [0, 1), got {label_smoothing}",
    )
    _check(input.dim() == 2, f"expected input of shape [N, C], got {list(input.shape)}")
    n, classes = input.shape
    _check(
        list(target.shape) == [n],
        f"expected target of shape {[n]} and int64, got {list(target.shape)} and {target.dtype}",
    )
    _check(
        weight is None or list(weight.shape) == [classes],
        f"expected weight of shape {[classes]} and float32, "
        f"got {'' if weight is None else f'{list(weight.shape)} and {weight.dtype}'}",
    )
    _check(
        ignore_index < classes or classes == 0,
        f"expected ignore_index below the {classes} classes, got {ignore_index}",
    )


@op.reference
def reference(
    input,
    target,
    weight=None,
    reduction="mean",
    ignore_index=-100,
    label_smoothing=0.0,
    lse_square_scale_for_zloss=0.0,
    return_zloss=False,
):
    """Return loss, log_prob and two zeros, each in input's dtype.

    input: [N, C]; target: [N] int64 in [0, C); weight: [C] float32, 1 when absent. In float32, with
    lp = log_softmax(input), a row's loss is (1 - s) * l + s * smooth / C for s = label_smoothing,
    l = -lp[target] * weight[target] and smooth = -sum(lp * weight). A row whose target is a
    non-negative ignore_index counts 0. reduction none: loss [N]; sum: their sum, [1]; mean: divided
    by the sum of weight[target] over the rows that count. log_prob: [N, C]; zloss: like loss and
    lse_for_zloss: [N], which upstream does not define, are 0.
    """
    _check(
        lse_square_scale_for_zloss == 0 and not return_zloss,
        "expected lse_square_scale_for_zloss 0 and return_zloss False: the z-loss is not defined",
    )
    classes = input.shape[-1] if input.dim() else 0
    _check_call(input, target, weight, reduction, ignore_index, label_smoothing)
    compute = torch.promote_types(input.dtype, torch.float32)
    log_prob = torch.log_softmax(input.to(compute), -1)
    weights = input.new_ones(classes, dtype=compute) if weight is None else weight.to(compute)
    check_indices(target, 0, classes, "[npu_cross_entropy_loss] expected target")
    w = weights.index_select(0, target)
    nll = -log_prob.gather(1, target[:, None]).squeeze(1) * w
    counts = (target != ignore_index).to(compute) if ignore_index >= 0 else torch.ones_like(nll)
    if label_smoothing:  # without it, a logit of -inf marks an impossible class
        smooth = -(log_prob * weights).sum(-1)
        nll = (1 - label_smoothing) * nll + label_smoothing * smooth / max(classes, 1)
    loss = torch.where(counts > 0, nll, 0.0)  # also for a row of NaN
    if reduction != "none":
        loss = loss.sum(0, keepdim=True)
    if reduction == "mean":
        loss = loss / (w * counts).sum(0, keepdim=True)
    zeros = torch.zeros_like(loss), torch.zeros_like(nll)
    return tuple(t.to(input.dtype) for t in (loss, log_prob, *zeros))


@op.function
def body(b, call, input, target, weight):
    smoothing, ignored = call.attrs["label_smoothing"], call.attrs["ignore_index"]
    reduction, dtype = call.attrs["reduction"], call.dtype("input")
    log_prob = b.LogSoftmax(b.Cast(input, to="float32"), axis=1)
    picked = b.GatherElements(log_prob, b.Unsqueeze(target, [1]), axis=1)
    nll = b.Neg(b.Squeeze(picked, [1]))
    weighted = log_prob if weight is None else b.Mul(log_prob, weight)
    zeros = b.Cast(b.Sub(target, target), to="float32")
    w = b.Add(zeros, 1.0) if weight is None else b.Gather(weight, target)
    loss = b.Mul(nll, w)
    if smoothing:
        smooth = b.Neg(b.ReduceMean(weighted, [1], keepdims=0))
        loss = b.Add(b.Mul(loss, 1 - smoothing), b.Mul(smooth, smoothing))
    if ignored >= 0:
        counted = b.Not(b.Equal(target, b.const(ignored, "int64")))
        loss, w = (b.Where(counted, v, b.const(0.0, "float32")) for v in (loss, w))
    if reduction != "none":
        loss = b.ReduceSum(loss, [0], keepdims=1)
    if reduction == "mean":
        loss = b.Div(loss, b.ReduceSum(w, [0], keepdims=1))
    zloss = zeros if reduction == "none" else b.const([0.0], "float32")
    return [b.Cast(v, to=dtype) for v in (loss, log_prob, zloss, zeros)]


@op.backward("input")
def backward(grad_loss, target, weight, reduction, ignore_index, label_smoothing, log_prob):
    """dinput = d - softmax sum(d), d the gradient of the row's log-probabilities.

    d is -(1 - s) w dl at the target and -s weight dl / C everywhere, for dl the row's share of the
    loss; it is not materialised, because rows are as long as a vocabulary.
    """
    compute = torch.promote_types(log_prob.dtype, torch.float32)
    classes = max(log_prob.shape[-1], 1)
    smooth = label_smoothing / classes
    weights = log_prob.new_ones(log_prob.shape[-1], dtype=compute)
    weights = weights if weight is None else weight.to(compute)
    w = weights.index_select(0, target)
    counts = (target != ignore_index).to(compute) if ignore_index >= 0 else torch.ones_like(w)
    dl = grad_loss.to(compute) * counts
    if reduction == "mean":
        dl = dl / (w * counts).sum()
    at_target = (1 - label_smoothing) * w * dl
    dinput = log_prob.to(compute).exp() * (at_target + smooth * weights.sum() * dl)[:, None]
    if smooth:
        dinput = torch.addr(dinput, dl, weights, alpha=-smooth)
    return dinput.scatter_add(1, target[:, None], -at_target[:, None])


@op.partner(
    "npu_cross_entropy_loss_backward(Tensor grad_loss, Tensor log_prob, Tensor target,"
    " Tensor? weight=None, Tensor? grad_zloss=None, Tensor? lse_for_zloss=None,"
    " str reduction='mean', int ignore_index=-100, float label_smoothing=0.0,"
    " float lse_square_scale_for_zloss=0.0) -> Tensor"
)
def npu_cross_entropy_loss_backward(
    grad_loss,
    log_prob,
    target,
    weight=None,
    grad_zloss=None,
    lse_for_zloss=None,
    reduction="mean",
    ignore_index=-100,
    label_smoothing=0.0,
    lse_square_scale_for_zloss=0.0,
):
    """Return the gradient of npu_cross_entropy_loss's input; the z-loss, which is 0, has none."""
    how = reduction, ignore_index, label_smoothing
    _check_call(log_prob, target, weight, *how)
    count = len(log_prob) if reduction == "none" else 1
    check(
        grad_loss.numel() == count,
        f"[npu_cross_entropy_loss_backward] expected grad_loss of shape [{count}], "
        f"got {list(grad_loss.shape)}",
    )
    gradient = backward(grad_loss.reshape(count), target, weight, *how, log_prob)
    return gradient.to(log_prob.dtype)


@op.samples
def samples(make):
    masked = make(5, 11)
    masked[:, 3] = -float("inf")
    yield Sample(masked, make.ints(5, high=3), id="impossible_class")
    yield Sample(make(0, 11), make.ints(0), reduction="sum", id="empty")
    yield Sample(make(0, 0), make.ints(0), None, "sum", label_smoothing=0.5, id="no_classes")
    x = [[1.0, 2.0, 3.0], [1.0, 1.0, 1.0]]
    log_prob = [[-2.40761, -1.40761, -0.407606], [-1.09861, -1.09861, -1.09861]]
    target = make.tensor([2, 0], "int64")
    yield Sample(
        make.tensor(x), target, id="catalogue", expect=[[0.753109], log_prob, [0.0], [0.0, 0.0]]
    )
    yield Sample(
        make.tensor(x),
        target,
        label_smoothing=0.1,
        id="catalogue_smoothing",
        expect=[[0.803109], None, None, None],
    )
    weight = make.uniform(11, low=0.5, high=2.0, dtype="float32")
    classes = make.tensor([3, 10, 0, 3, 7], "int64")
    for reduction in ("mean", "sum", "none"):
        yield Sample(make(5, 11), classes, None, reduction, id=reduction)
        yield Sample(make(5, 11), classes, weight, reduction, 3, 0.25, id=f"{reduction}_everything")
    yield Sample(make(64, 1000), make.ints(64, high=1000), id="threads")
    yield Sample(make(4, 11, scale=30.0), classes[:4], reduction="none", id="large_logits")
    yield Sample(make(2, 1), make.ints(2, high=1), id="one_class")
    yield Sample(make(11, 5).t(), classes, id="not_contiguous")


op.errors(
    lambda make: Sample(make(2, 8), make.tensor([3, 8], "int64")),
    match=r"\[npu_cross_entropy_loss\] expected target in \[0, 8\), got 8",
    needs_values=True,
    id="target_too_large",
)
op.errors(
    lambda make: Sample(make(2, 8), make.tensor([-100, 3], "int64")),
    match=r"\[npu_cross_entropy_loss\] expected target in \[0, 8\), got -100",
    needs_values=True,
    id="negative_target",
)
op.errors(
    lambda make: Sample(make(2, 8), make.ints(2), reduction="max"),
    match=r"\[npu_cross_entropy_loss\] expected reduction mean, sum or none, got 'max'",
    id="reduction",
)
op.errors(
    lambda make: Sample(make(2, 8), make.ints(2), label_smoothing=1.0),
    match=r"\[npu_cross_entropy_loss\] expected label_smoothing in \[0, 1\), got 1",
    id="label_smoothing",
)
op.errors(
    lambda make: Sample(make(2, 8), make.ints(2), return_zloss=True),
    match=r"\[npu_cross_entropy_loss\] expected .* the z-loss is not defined",
    id="zloss",
)
op.errors(
    lambda make: Sample(make(2, 1, 8), make.ints(2)),
    match=r"\[npu_cross_entropy_loss\] expected input of shape \[N, C\], got \[2, 1, 8\]",
    id="rank",
)
op.errors(
    lambda make: Sample(make(2, 8), make.ints(3)),
    match=r"\[npu_cross_entropy_loss\] expected target of shape \[2\] and int64, got \[3\]",
    id="target_shape",
)
op.errors(
    lambda make: Sample(make(2, 8), make.ints(2), make(7, dtype="float32")),
    match=r"\[npu_cross_entropy_loss\] expected weight of shape \[8\] and float32, got \[7\]",
    id="weight_shape",
)
op.errors(
    lambda make: Sample(make(2, 8), make.ints(2), ignore_index=8),
    match=r"\[npu_cross_entropy_loss\] expected ignore_index below the 8 classes, got 8",
    id="ignore_index",
)
