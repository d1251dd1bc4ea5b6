"""One direction of an LSTM layer, with the gates of every step.

Source: torch_npu.npu_lstm, npu_lstm_backward.
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

_NAME = "npu_lstm"
_END = 2**31 - 1
_OUTPUTS = ["y", "output_h", "output_c", "i", "j", "f", "o", "tanhc"]

op = npu_op(
    f"{_NAME}(Tensor input, Tensor weight, Tensor bias, Tensor seq_mask, Tensor h, Tensor c,"
    " bool has_biases, int num_layers, float dropout, bool train, bool bidirectional,"
    " bool batch_first, bool flag_seq, bool direction)"
    f" -> ({', '.join(['Tensor'] * len(_OUTPUTS))})",
    onnx="NPULstm",
    outputs=_OUTPUTS,
    dtypes={
        **{name: FLOATS for name in ("input", "weight", "bias", "h", "c", *_OUTPUTS)},
        "seq_mask": ["float32", "float16", "int32"],
    },
    attribute_names={"flag_seq": "flagSeq"},  # as torch_npu's exporter has it
)


def _steps(input, weight, bias, seq_mask, h, c, flag_seq, direction):
    """Return the eight results, each [T, B, H]."""
    hidden, width = h[0], h.shape[2]
    cell = c[0]
    order = range(input.shape[0])
    steps = [None] * len(order)
    for t in reversed(order) if direction else order:
        p = torch.cat([input[t], hidden], 1) @ weight + bias
        i, f, j, o = p.split(width, 1)
        i, f, j, o = i.sigmoid(), f.sigmoid(), j.tanh(), o.sigmoid()
        new = f * cell + i * j
        tanhc = new.tanh()
        out = o * tanhc
        if flag_seq:
            m = seq_mask[t].to(out.dtype)
            out, new = m * out + (1 - m) * hidden, m * new + (1 - m) * cell
        hidden, cell = out, new
        steps[t] = hidden, hidden, cell, i, j, f, o, tanhc
    return tuple(torch.stack(values) for values in zip(*steps, strict=True))


def _check(input, weight, bias, seq_mask, h, c, flag_seq):
    check(
        input.dim() == 3 and bias.dim() == 1 and bias.shape[0] % 4 == 0,
        f"[{_NAME}] expected input [T, B, I] and bias [4 H], "
        f"got {list(input.shape)} and {list(bias.shape)}",
    )
    steps, batch, inputs = input.shape
    width = bias.shape[0] // 4
    check_tensors(
        _NAME,
        input,
        weight=(weight, [inputs + width, 4 * width]),
        bias=(bias, [4 * width]),
        h=(h, [1, batch, width]),
        c=(c, [1, batch, width]),
    )
    check(
        not flag_seq or list(seq_mask.shape) == [steps, batch, width],
        f"[{_NAME}] expected seq_mask of shape {[steps, batch, width]}, got {list(seq_mask.shape)}",
    )


@op.reference
def reference(
    input,
    weight,
    bias,
    seq_mask,
    h,
    c,
    has_biases,
    num_layers,
    dropout,
    train,
    bidirectional,
    batch_first,
    flag_seq,
    direction,
):
    """Return the hidden state of each step twice, the cell state, i, j, f, o and tanh of the cell.

    input: [T, B, I]; weight: [I + H, 4 H], columns of the gates i, f, j, o; bias: [4 H]; h, c:
    [1, B, H]; all of one dtype; results: [T, B, H] of it, computed in float32 and rounded once.
    With p = [x, h] weight + bias: i, f, o = sigmoid, j = tanh, c = f c + i j, h = o tanh(c). With
    flag_seq, seq_mask [T, B, H] m: h and c become m new + (1 - m) old. With direction from the last
    step to the first. The other arguments have no effect, as in torch_npu.
    """
    _check(input, weight, bias, seq_mask, h, c, flag_seq)
    steps, batch, width = input.shape[0], input.shape[1], h.shape[2]
    if is_traced(input) or steps == 0:
        return nothing(len(_OUTPUTS), (steps, batch, width), input, weight, bias, h, c)
    arguments = (wide(input), wide(weight), wide(bias), seq_mask, wide(h), wide(c))
    return tuple(t.to(input.dtype) for t in _steps(*arguments, flag_seq, direction))


@op.function
def body(b, call, input, weight, bias, seq_mask, h, c):
    """By Scan: ONNX's LSTM returns neither the gates nor the cell state of every step."""
    dtype, masked = call.dtype("input"), call.attrs["flagSeq"]
    x, w, bias, h, c = (b.Cast(t, to="float32") for t in (input, weight, bias, h, c))
    inputs = b.Shape(x, start=2, end=3)
    of_input = b.Slice(w, [0], inputs, [0])
    of_hidden = b.Slice(w, inputs, b.const([_END], "int64"), [0])
    from_input = b.Add(b.MatMul(x, of_input), bias)
    kept = [b.Cast(seq_mask, to="float32")] if masked else []

    def step(b, hidden, cell, from_input, *kept):
        gates = b.Add(from_input, b.MatMul(hidden, of_hidden))
        i, f, j, o = b.Split(gates, num_outputs=4, axis=1)
        i, f, j, o = b.Sigmoid(i), b.Sigmoid(f), b.Tanh(j), b.Sigmoid(o)
        new = b.Add(b.Mul(f, cell), b.Mul(i, j))
        tanhc = b.Tanh(new)
        out = b.Mul(o, tanhc)
        for m in kept:
            gone = b.Sub(1.0, m)
            out = b.Add(b.Mul(m, out), b.Mul(gone, hidden))
            new = b.Add(b.Mul(m, new), b.Mul(gone, cell))
        return out, new, *(b.Identity(t) for t in (out, new)), i, j, f, o, tanhc

    states = [b.Squeeze(t, [0]) for t in (h, c)]
    reverse = bool(call.attrs["direction"])
    found = b.scan(step, "float32", states, [from_input, *kept], results=7, reverse=reverse)
    found = [b.Cast(t, to=dtype) for t in found]
    return b.Identity(found[0]), *found


def _gradients(grads, input, weight, bias, seq_mask, h, c, saved, flag_seq, direction):
    """Of input, weight, bias, h and c, from what the forward pass returned: no step runs again."""
    given = input, weight, bias, h, c
    if input.shape[0] == 0:
        return tuple(torch.zeros_like(t) for t in given)
    x, w, _, first_h, first_c = (wide(t) for t in given)
    output_h, output_c, i, j, f, o, tanhc = (wide(t) for t in saved)
    hidden, cell = (
        states_before(first_h, output_h, direction),
        states_before(first_c, output_c, direction),
    )
    of_hidden = w[x.shape[2] :].t()
    grad_h, grad_c = total(*grads[:2], like=output_h), total(grads[2], like=output_c)
    # What the gradient of the cell and of the hidden state is multiplied by: of all steps at once.
    of_cell = torch.cat([j * i * (1 - i), cell * f * (1 - f), i * (1 - j * j)], 2)
    of_output, to_cell = tanhc * o * (1 - o), o * (1 - tanhc * tanhc)
    kept = seq_mask.to(x.dtype) if flag_seq else None
    dh, dc = torch.zeros_like(first_h[0]), torch.zeros_like(first_c[0])
    steps = range(x.shape[0])
    gates = [None] * len(steps)
    for t in steps if direction else reversed(steps):
        dh, dc = dh + grad_h[t], dc + grad_c[t]
        past = None
        if kept is not None:
            past = (1 - kept[t]) * dh, (1 - kept[t]) * dc
            dh, dc = kept[t] * dh, kept[t] * dc
        dc = dc + dh * to_cell[t]
        gates[t] = torch.cat([dc.repeat(1, 3) * of_cell[t], dh * of_output[t]], 1)
        dh, dc = gates[t] @ of_hidden, dc * f[t]
        if past is not None:
            dh, dc = dh + past[0], dc + past[1]
    gates = torch.stack(gates)
    found = (
        gates @ w[: x.shape[2]].t(),
        product_over_steps(torch.cat([x, hidden], 2), gates),
        gates.sum((0, 1)),
        dh[None],
        dc[None],
    )
    return tuple(g.to(t.dtype) for g, t in zip(found, given, strict=True))


@op.backward("input", "weight", "bias", "h", "c")
def backward(
    grad_y,
    grad_output_h,
    grad_output_c,
    input,
    weight,
    bias,
    seq_mask,
    h,
    c,
    output_h,
    output_c,
    i,
    j,
    f,
    o,
    tanhc,
    flag_seq,
    direction,
):
    """Of y, output_h and output_c."""
    grads, saved = (grad_y, grad_output_h, grad_output_c), (output_h, output_c, i, j, f, o, tanhc)
    return _gradients(grads, input, weight, bias, seq_mask, h, c, saved, flag_seq, direction)


@op.partner(
    f"{_NAME}_backward(Tensor? grady, Tensor? gradh, Tensor? gradc, Tensor input, Tensor weight,"
    " Tensor bias, Tensor hx, Tensor cx, Tensor y_output, Tensor h_output, Tensor c_output,"
    " Tensor i, Tensor j, Tensor f, Tensor o, Tensor tanhc)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def npu_lstm_backward(
    grady,
    gradh,
    gradc,
    input,
    weight,
    bias,
    hx,
    cx,
    y_output,
    h_output,
    c_output,
    i,
    j,
    f,
    o,
    tanhc,
):
    """Return the gradients of input, weight, bias, h and c of a forward pass without a mask."""
    _check(input, weight, bias, None, hx, cx, False)
    steps, batch, width = input.shape[0], input.shape[1], hx.shape[2]
    saved = {"h_output": h_output, "c_output": c_output, "i": i, "j": j, "f": f, "o": o}
    saved |= {"tanhc": tanhc}
    check_tensors(_NAME, input, **{k: (v, [steps, batch, width]) for k, v in saved.items()})
    grads = grady, gradh, gradc
    return _gradients(grads, input, weight, bias, None, hx, cx, saved.values(), False, False)


@op.samples
def samples(make):
    half = make.tensor([[0.5] * 4] * 2)
    one = make.tensor([[[1.0]]])
    none = make(1, 1, 1)
    flags = True, 1, 0.0, False, False, False
    yield Sample(
        one,
        half,
        make.tensor([0.0] * 4),
        none,
        one * 0.5,
        one * 0.25,
        *flags,
        False,
        False,
        id="catalogue",
        expect=[
            *[[[[value]]] for value in (0.365320, 0.365320, 0.601174)],
            *[[[[value]]] for value in (0.679179, 0.635149, 0.679179, 0.679179, 0.537885)],
        ],
    )

    def layer(steps, batch, inputs, width):
        return (
            make(steps, batch, inputs),
            make(inputs + width, 4 * width, scale=0.3),
            make(4 * width, scale=0.3),
        )

    def states(batch, width):
        return make(1, batch, width), make(1, batch, width)

    kept = (torch.arange(4)[:, None, None] < torch.tensor([4, 2, 1])[None, :, None]).float()
    yield Sample(
        *layer(4, 3, 5, 6),
        kept.expand(4, 3, 6).contiguous(),
        *states(3, 6),
        *flags,
        True,
        False,
        id="sequences",
    )
    trained = True, 1, 0.25, True, False, False
    yield Sample(*layer(3, 2, 3, 4), make(1), *states(2, 4), *trained, False, True, id="reverse")
    yield Sample(*layer(0, 2, 3, 4), make(1), *states(2, 4), *flags, False, False, id="no_steps")


_FLAGS = True, 1, 0.0, False, False, False
op.errors(
    lambda make: Sample(
        make(3, 2, 5),
        make(8, 16),
        make(16),
        make(1),
        make(1, 2, 4),
        make(1, 2, 4),
        *_FLAGS,
        False,
        False,
    ),
    match=r"\[npu_lstm\] expected weight of shape \[9, 16\], got \[8, 16\]",
    id="weight",
)
op.errors(
    lambda make: Sample(
        make(3, 2, 5),
        make(9, 16),
        make(16),
        make(3),
        make(1, 2, 4),
        make(1, 2, 4),
        *_FLAGS,
        True,
        False,
    ),
    match=r"\[npu_lstm\] expected seq_mask of shape \[3, 2, 4\], got \[3\]",
    id="mask",
)
op.errors(
    lambda make: Sample(
        make(2, 5),
        make(9, 16),
        make(16),
        make(3),
        make(1, 2, 4),
        make(1, 2, 4),
        *_FLAGS,
        False,
        False,
    ),
    match=r"\[npu_lstm\] expected input \[T, B, I\] and bias \[4 H\], got \[2, 5\] and \[16\]",
    id="rank",
)
