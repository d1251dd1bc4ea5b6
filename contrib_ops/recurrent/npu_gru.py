"""One direction of a GRU layer, with the gates of every step.

Source: torch_npu.npu_gru, npu_gru_backward.
"""

from onnxruntime_npu.opdef import Sample, check, is_traced, npu_op, torch, wide

from ._layers import (
    FLOATS,
    check_tensors,
    nothing,
    product_over_steps,
    states_before,
    total,
)

_NAME = "npu_gru"
_TENSORS = ["input", "hx", "weight_input", "weight_hidden", "bias_input", "bias_hidden"]
_OUTPUTS = ["y", "output_h", "update", "reset", "candidate", "hidden_new"]

op = npu_op(
    f"{_NAME}({', '.join(f'Tensor {name}' for name in _TENSORS)}, Tensor seq_length,"
    " bool has_biases, int num_layers, float dropout, bool train, bool bidirectional,"
    f" bool batch_first) -> ({', '.join(['Tensor'] * len(_OUTPUTS))})",
    onnx="NPUGru",
    outputs=_OUTPUTS,
    dtypes={**{name: FLOATS for name in (*_TENSORS, *_OUTPUTS)}, "seq_length": ["int32"]},
)


def _steps(input, hx, weight_input, weight_hidden, bias_input, bias_hidden):
    """Return the six results, each [T, B, H]."""
    hidden, width = hx[0], hx.shape[2]
    steps = []
    for x in input.unbind(0):
        from_input = (x @ weight_input + bias_input).split(width, 1)
        from_hidden = (hidden @ weight_hidden + bias_hidden).split(width, 1)
        r, z = ((a + b).sigmoid() for a, b in zip(from_input[:2], from_hidden[:2], strict=True))
        n = (from_input[2] + r * from_hidden[2]).tanh()
        hidden = (1 - z) * n + z * hidden
        steps.append((hidden, hidden, z, r, n, from_hidden[2]))
    return tuple(torch.stack(values) for values in zip(*steps, strict=True))


def _check(input, hx, weight_input, weight_hidden, bias_input, bias_hidden):
    check(
        input.dim() == 3 and bias_input.dim() == 1 and bias_input.shape[0] % 3 == 0,
        f"[{_NAME}] expected input [T, B, I] and bias_input [3 H], "
        f"got {list(input.shape)} and {list(bias_input.shape)}",
    )
    width = bias_input.shape[0] // 3
    check_tensors(
        _NAME,
        input,
        hx=(hx, [1, input.shape[1], width]),
        weight_input=(weight_input, [input.shape[2], 3 * width]),
        weight_hidden=(weight_hidden, [width, 3 * width]),
        bias_input=(bias_input, [3 * width]),
        bias_hidden=(bias_hidden, [3 * width]),
    )


@op.reference
def reference(
    input,
    hx,
    weight_input,
    weight_hidden,
    bias_input,
    bias_hidden,
    seq_length,
    has_biases,
    num_layers,
    dropout,
    train,
    bidirectional,
    batch_first,
):
    """Return the hidden state of each step twice, z, r, n and h U_n + b_hn.

    input: [T, B, I]; hx: [1, B, H]; weight_input W: [I, 3 H], weight_hidden U: [H, 3 H], columns of
    r, z, n; biases: [3 H]; all of one dtype; results: [T, B, H] of it, computed in float32 and
    rounded once. r, z = sigmoid(x W + b + h U + b'), n = tanh(x W_n + b_n + r (h U_n + b'_n)),
    h = (1 - z) n + z h. seq_length and the other arguments have no effect, as in torch_npu.
    """
    tensors = input, hx, weight_input, weight_hidden, bias_input, bias_hidden
    _check(*tensors)
    if is_traced(input) or input.shape[0] == 0:
        shape = input.shape[0], input.shape[1], hx.shape[2]
        return nothing(len(_OUTPUTS), shape, *tensors)
    return tuple(t.to(input.dtype) for t in _steps(*(wide(t) for t in tensors)))


@op.function
def body(b, call, input, hx, weight_input, weight_hidden, bias_input, bias_hidden, seq_length):
    """By Scan: ONNX's GRU returns no gates, and has the hidden size as an attribute."""
    tensors = input, hx, weight_input, weight_hidden, bias_input, bias_hidden
    x, hx, w, u, of_input, of_hidden = (b.Cast(t, to="float32") for t in tensors)

    def step(b, hidden, from_input):
        from_hidden = b.Add(b.MatMul(hidden, u), of_hidden)
        xr, xz, xn = b.Split(from_input, num_outputs=3, axis=1)
        hr, hz, hidden_new = b.Split(from_hidden, num_outputs=3, axis=1)
        r, z = b.Sigmoid(b.Add(xr, hr)), b.Sigmoid(b.Add(xz, hz))
        n = b.Tanh(b.Add(xn, b.Mul(r, hidden_new)))
        out = b.Add(b.Mul(b.Sub(1.0, z), n), b.Mul(z, hidden))
        return out, b.Identity(out), z, r, n, hidden_new

    from_input = b.Add(b.MatMul(x, w), of_input)
    found = b.scan(step, "float32", [b.Squeeze(hx, [0])], [from_input], results=5)
    found = [b.Cast(t, to=call.dtype("input")) for t in found]
    return b.Identity(found[0]), *found


def _gradients(grads, saved, *tensors):
    """Of the tensors, from what the forward pass returned: no step runs again."""
    if tensors[0].shape[0] == 0:
        return tuple(torch.zeros_like(t) for t in tensors)
    x, first, weight_input, weight_hidden = (wide(t) for t in tensors[:4])
    output_h, z, r, n, hidden_new = (wide(t) for t in saved)
    hidden, grad_h = states_before(first, output_h), total(*grads, like=output_h)
    # What the gradient of the hidden state is multiplied by: of all steps at once.
    of_n = (1 - z) * (1 - n * n)
    of_z, of_r = (hidden - n) * z * (1 - z), of_n * hidden_new * r * (1 - r)
    from_input, from_hidden = torch.cat([of_r, of_z, of_n], 2), torch.cat([of_r, of_z, of_n * r], 2)
    dh = torch.zeros_like(first[0])
    sums = [None] * x.shape[0]
    for t in reversed(range(x.shape[0])):
        sums[t] = dh + grad_h[t]
        dh = sums[t] * z[t] + (sums[t].repeat(1, 3) * from_hidden[t]) @ weight_hidden.t()
    each = torch.stack(sums).repeat(1, 1, 3)
    of_input, of_hidden = each * from_input, each * from_hidden
    found = (
        of_input @ weight_input.t(),
        dh[None],
        product_over_steps(x, of_input),
        product_over_steps(hidden, of_hidden),
        of_input.sum((0, 1)),
        of_hidden.sum((0, 1)),
    )
    return tuple(g.to(t.dtype) for g, t in zip(found, tensors, strict=True))


@op.backward(*_TENSORS)
def backward(
    grad_y,
    grad_output_h,
    input,
    hx,
    weight_input,
    weight_hidden,
    bias_input,
    bias_hidden,
    output_h,
    update,
    reset,
    candidate,
    hidden_new,
):
    """Of y and output_h."""
    tensors = input, hx, weight_input, weight_hidden, bias_input, bias_hidden
    return _gradients(
        (grad_y, grad_output_h), (output_h, update, reset, candidate, hidden_new), *tensors
    )


@op.partner(
    f"{_NAME}_backward(Tensor? grady, Tensor? gradh, Tensor input, Tensor weight_input,"
    " Tensor weight_hidden, Tensor bias_input, Tensor bias_hidden, Tensor seq_length, Tensor hx,"
    " Tensor y_output, Tensor h_output, Tensor output_updata, Tensor output_reset,"
    " Tensor output_new, Tensor hidden_new)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def npu_gru_backward(
    grady,
    gradh,
    input,
    weight_input,
    weight_hidden,
    bias_input,
    bias_hidden,
    seq_length,
    hx,
    y_output,
    h_output,
    output_updata,
    output_reset,
    output_new,
    hidden_new,
):
    """Return the gradients of both weights, input, both biases and hx, in torch_npu's order."""
    tensors = input, hx, weight_input, weight_hidden, bias_input, bias_hidden
    _check(*tensors)
    shape = [input.shape[0], input.shape[1], hx.shape[2]]
    saved = {
        "h_output": h_output,
        "output_updata": output_updata,
        "output_reset": output_reset,
        "output_new": output_new,
        "hidden_new": hidden_new,
    }
    check_tensors(_NAME, input, **{name: (tensor, shape) for name, tensor in saved.items()})
    dx, dh, dw, du, dbw, dbu = _gradients((grady, gradh), saved.values(), *tensors)
    return dw, du, dx, dbw, dbu, dh


_FLAGS = True, 1, 0.0, False, False, False


@op.samples
def samples(make):
    half, one = make.tensor([[0.5] * 3]), make.tensor([[[1.0]]])
    none, length = make.tensor([0.0] * 3), make.tensor([1], "int32")
    yield Sample(
        one,
        one * 0.5,
        half,
        half,
        none,
        none,
        length,
        *_FLAGS,
        id="catalogue",
        expect=[[[[value]]] for value in (0.527220, 0.527220, 0.679179, 0.679179, 0.584845, 0.25)],
    )

    def layer(steps, batch, inputs, width):
        weights = make(inputs, 3 * width, scale=0.3), make(width, 3 * width, scale=0.3)
        biases = make(3 * width, scale=0.3), make(3 * width, scale=0.3)
        return make(steps, batch, inputs), make(1, batch, width), *weights, *biases, length

    trained = True, 1, 0.25, True, False, False
    yield Sample(*layer(4, 3, 5, 6), *trained, id="steps")
    yield Sample(*layer(0, 2, 3, 4), *_FLAGS, id="no_steps")


op.errors(
    lambda make: Sample(
        make(3, 2, 5),
        make(1, 2, 4),
        make(5, 12),
        make(4, 11),
        make(12),
        make(12),
        make.ints(1, dtype="int32"),
        *_FLAGS,
    ),
    match=r"\[npu_gru\] expected weight_hidden of shape \[4, 12\], got \[4, 11\]",
    id="weight",
)
op.errors(
    lambda make: Sample(
        make(3, 2, 5),
        make(1, 2, 4),
        make(5, 12),
        make(4, 12),
        make(11),
        make(12),
        make.ints(1, dtype="int32"),
        *_FLAGS,
    ),
    match=r"\[npu_gru\] expected input \[T, B, I\] and bias_input \[3 H\], "
    r"got \[3, 2, 5\] and \[11\]",
    id="bias",
)
