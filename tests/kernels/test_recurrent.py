"""LSTM, GRU and RNN against a step-by-step computation in float64."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_nodes import FLOATS, Node, random, run_cpu, run_npu

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
DEFAULTS = {
    "LSTM": ["Sigmoid", "Tanh", "Tanh"],
    "GRU": ["Sigmoid", "Tanh"],
    "RNN": ["Tanh"],
}
# A result is a product of sums of up to `hidden + inputs` terms below 1; of 16-bit floats, the
# hidden state is rounded once in each step.
NEAR = {"float64": 1e-13, "float32": 2e-6, "float16": 4e-3, "bfloat16": 3e-2}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


ACTIVATIONS = {
    "Relu": lambda x, a, b: np.maximum(x, 0),
    "Tanh": lambda x, a, b: np.tanh(x),
    "Sigmoid": lambda x, a, b: sigmoid(x),
    "Affine": lambda x, a, b: a * x + b,
    "LeakyRelu": lambda x, a, b: np.where(x < 0, a * x, x),
    "ThresholdedRelu": lambda x, a, b: np.where(x > a, x, 0),
    "ScaledTanh": lambda x, a, b: a * np.tanh(b * x),
    "HardSigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "Elu": lambda x, a, b: np.where(x < 0, a * np.expm1(x), x),
    "Softsign": lambda x, a, b: x / (1 + np.abs(x)),
    "Softplus": lambda x, a, b: np.logaddexp(0, x),
}


def one_sequence(op, x, w, r, bias, hidden, memory, peepholes, functions, attributes):
    """The hidden states [steps, hidden] of one sequence, and its last state and memory."""
    n = len(hidden)
    clip = attributes.get("clip", np.inf)
    f, g, *_ = [lambda v, k=k: k(np.clip(v, -clip, clip)) for k in [*functions, None]]
    wb, rb = bias.reshape(2, -1)
    states = []
    if len(x) == 0:  # as in onnxruntime
        hidden, memory = 0 * hidden, 0 * memory
    for value in x:
        a, b = w @ value + wb, r @ hidden + rb
        if op == "RNN":
            hidden = f(a + b)
        elif op == "GRU":
            update, reset = f((a + b)[:n]), f((a + b)[n : 2 * n])
            if attributes.get("linear_before_reset"):
                inner = reset * b[2 * n :]
            else:
                inner = r[2 * n :] @ (reset * hidden) + rb[2 * n :]
            hidden = (1 - update) * g(a[2 * n :] + inner) + update * hidden
        else:
            i, o, forget, news = (a + b).reshape(4, n)
            pi, po, pf = peepholes.reshape(3, n)
            i = f(i + pi * memory)
            forget = 1 - i if attributes.get("input_forget") else f(forget + pf * memory)
            memory = forget * memory + i * g(news)
            hidden = f(o + po * memory) * functions[2](memory)
        states.append(hidden)
    return states, hidden, memory


def reference(op, x, w, r, bias, lengths, h0, c0, peepholes, **attributes):
    """Y, Y_h and Y_c in float64, from inputs in layout 0."""
    steps, batch, _ = x.shape
    directions, n = w.shape[0], r.shape[2]
    wide = [None if a is None else a.astype(np.float64) for a in (x, w, r, bias, h0, c0, peepholes)]
    x, w, r, bias, h0, c0, peepholes = wide
    bias = np.zeros((directions, 2 * w.shape[1])) if bias is None else bias
    h0 = np.zeros((directions, batch, n)) if h0 is None else h0
    c0 = np.zeros((directions, batch, n)) if c0 is None else c0
    peepholes = np.zeros((directions, 3 * n)) if peepholes is None else peepholes
    names = attributes.get("activations", DEFAULTS[op] * directions)
    alphas = list(attributes.get("activation_alpha", [])) + [0.0] * len(names)
    betas = list(attributes.get("activation_beta", [])) + [0.0] * len(names)
    functions = []
    for name in names:
        a = alphas.pop(0) if name in WITH_ALPHA else 0.0
        b = betas.pop(0) if name in WITH_BETA else 0.0
        functions.append(lambda v, name=name, a=a, b=b: ACTIVATIONS[name](v, a, b))
    y = np.zeros((steps, directions, batch, n))
    y_h, y_c = np.zeros((directions, batch, n)), np.zeros((directions, batch, n))
    each = len(DEFAULTS[op])
    for d in range(directions):
        backwards = d == 1 or attributes.get("direction") == "reverse"
        for k in range(batch):
            length = steps if lengths is None else lengths[k]
            order = range(length)[::-1] if backwards else range(length)
            states, y_h[d, k], y_c[d, k] = one_sequence(
                op, x[list(order), k], w[d], r[d], bias[d], h0[d, k], c0[d, k], peepholes[d],
                functions[d * each : (d + 1) * each], attributes,
            )  # fmt: skip
            for time, state in zip(order, states, strict=True):
                y[time, d, k] = state
    return y, y_h, y_c


WITH_ALPHA = {"Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu"}
WITH_BETA = {"Affine", "ScaledTanh", "HardSigmoid"}


def operands(op, dtype, steps, batch, inputs, hidden, directions, seed=0):
    """All inputs in layout 0, with sequences of several lengths; P last."""
    rng = np.random.default_rng(seed)
    columns = GATES[op] * hidden

    def values(*shape):
        return random(rng, dtype, *shape, low=-0.5, high=0.5)

    lengths = rng.integers(0, steps + 1, batch).astype(np.int32)
    lengths[0] = steps
    x, w, r = (
        values(steps, batch, inputs),
        values(directions, columns, inputs),
        values(directions, columns, hidden),
    )
    given = [x, w, r, values(directions, 2 * columns), lengths, values(directions, batch, hidden)]
    if op == "LSTM":
        given += [values(directions, batch, hidden), values(directions, 3 * hidden)]
    return given


def batch_first(given: list) -> list:
    """The same in layout 1."""
    swapped = list(given)
    for i in (0, 5, 6):
        if i < len(given) and given[i] is not None:
            swapped[i] = np.ascontiguousarray(given[i].swapaxes(0, 1))
    return swapped


def check(op, given, dtype, **attributes):
    """Compares all outputs of a node, whose weights are given by the call."""
    outputs = 3 if op == "LSTM" else 2
    expected = reference(op, *given, *[None] * (8 - len(given)), **attributes)[:outputs]
    if attributes.get("layout"):
        given = batch_first(given)
        expected = [np.moveaxis(expected[0], 2, 0), *(e.swapaxes(0, 1) for e in expected[1:])]
    got = run_npu(op, given, outputs, opset=22, hidden_size=given[2].shape[2], **attributes)
    for value, wanted in zip(got, expected, strict=True):
        assert value.shape == wanted.shape and value.dtype == given[0].dtype
        np.testing.assert_allclose(value.astype(np.float64), wanted, rtol=0, atol=NEAR[dtype])


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", GATES)
def test_layer(op, dtype, direction, layout) -> None:
    directions = 2 if direction == "bidirectional" else 1
    given = operands(op, dtype, 6, 5, 7, 9, directions)
    check(op, given, dtype, direction=direction, layout=layout)
    sparse = [*given[:3], *[None] * (len(given) - 3)]
    check(op, sparse, dtype, direction=direction, layout=layout)


@pytest.mark.parametrize(
    "op, attributes",
    [("LSTM", {"input_forget": 1}), ("GRU", {"linear_before_reset": 1})],
    ids=["coupled gates of LSTM", "reset after the product of GRU"],
)
@pytest.mark.parametrize("dtype", FLOATS)
def test_variants(op, attributes, dtype) -> None:
    check(op, operands(op, dtype, 5, 4, 3, 17, 2), dtype, direction="bidirectional", **attributes)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", GATES)
def test_clip(op, dtype) -> None:
    check(op, operands(op, dtype, 5, 3, 6, 8, 1), dtype, clip=0.125)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name, dtype) -> None:
    """Each activation takes its own alpha and beta, in order."""
    names = [name, "Tanh", "HardSigmoid", "LeakyRelu", name, "Affine"]
    alphas = [0.75 - 0.125 * i for i, n in enumerate(n for n in names if n in WITH_ALPHA)]
    betas = [0.25 + 0.125 * i for i, n in enumerate(n for n in names if n in WITH_BETA)]
    check(
        "LSTM", operands("LSTM", dtype, 3, 2, 4, 5, 2), dtype, direction="bidirectional",
        activations=names, activation_alpha=alphas, activation_beta=betas,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["LEAKYRELU", "hardsigmoid", "elu"])
@pytest.mark.parametrize("op", ["LSTM", "GRU"])
def test_names_of_activations_in_any_case_and_their_default_numbers(op, name) -> None:
    given = operands(op, "float32", 3, 2, 4, 5, 1)
    options = {"opset": 14, "hidden_size": 5, "activations": [name] * len(DEFAULTS[op])}
    for got, wanted in zip(
        run_npu(op, given, 2, **options), run_cpu(op, given, 2, **options), strict=True
    ):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=NEAR["float32"])


@pytest.mark.parametrize("constant", [(), (1, 2), (1,), (2,)])
@pytest.mark.parametrize(("batch", "hidden"), [(33, 96), (1, 99)])
@pytest.mark.parametrize("op", GATES)
def test_constant_weights_and_many_steps(op, batch, hidden, constant) -> None:
    """Against onnxruntime's CPU provider, at sizes that are split among threads and in blocks."""
    given = operands(op, "float32", 70, batch, 40, hidden, 2)
    given[1:3] = [a / 4 for a in given[1:3]]
    options = {"opset": 14, "hidden_size": hidden, "direction": "bidirectional"}
    options["constant"] = constant
    for got, wanted in zip(
        run_npu(op, given, 2, **options), run_cpu(op, given, 2, **options), strict=True
    ):
        # Sums of 136 terms, of values that 70 steps feed back.
        np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-5)


@pytest.mark.parametrize("op", GATES)
def test_no_sequences_no_steps_and_no_inputs(op) -> None:
    for steps, batch, inputs in [(0, 3, 4), (4, 0, 4), (3, 2, 0), (0, 0, 0)]:
        given = operands(op, "float32", steps, max(batch, 1), inputs, 5, 1)
        given[0] = given[0][:, :batch]
        given[4] = given[4][:batch]
        for i in range(5, len(given) - (op == "LSTM")):
            given[i] = given[i][:, :batch]
        check(op, given, "float32")


def test_only_requested_outputs_are_computed() -> None:
    given = operands("LSTM", "float32", 4, 3, 5, 6, 1)
    y, y_h, y_c = reference("LSTM", *given)
    for names, wanted in [(["", "h"], [y_h]), (["", "", "c"], [y_c]), (["y", "", "c"], [y, y_c])]:
        got = run_npu("LSTM", given, names, opset=14, hidden_size=6)
        for value, expected in zip(got, wanted, strict=True):
            np.testing.assert_allclose(value, expected, rtol=0, atol=NEAR["float32"])


WRONG = [
    ({1: (1, 19, 4)}, {}, r"expected W of shape \[1, 20, 4\], got \[1, 19, 4\]"),
    ({1: (1, 20, 3)}, {}, r"expected W of shape \[1, 20, 4\]"),
    ({2: (1, 20, 6)}, {}, "hidden_size"),
    ({2: (1, 15, 5)}, {}, r"expected R of shape \[1, 20, 5\]"),
    ({3: (1, 20)}, {}, r"expected B of float32 \[1, 40\]"),
    ({4: (3,)}, {}, r"expected sequence_lens of int32 \[2\]"),
    ({5: (1, 1, 5)}, {}, r"expected initial_h of float32 \[1, 2, 5\]"),
    ({6: (2, 2, 5)}, {}, r"expected initial_c of float32 \[1, 2, 5\]"),
    ({7: (1, 20)}, {}, r"expected P of float32 \[1, 15\]"),
    ({}, {"hidden_size": 4}, "hidden_size"),
    ({}, {"layout": 2}, "expected a layout of 0 or 1"),
    ({}, {"direction": "sideways"}, "expected a direction of forward"),
    ({}, {"direction": "bidirectional"}, r"expected W of shape \[2"),
    ({}, {"activations": ["Tanh"]}, "expected 3 activations"),
    ({}, {"activations": ["Tanh", "Tanh", "Cube"]}, "expected activations from Relu, Tanh"),
    (
        {},
        {"activations": ["Affine"] * 3, "activation_alpha": [1.0] * 3},
        "activation_beta for each",
    ),
    ({}, {"clip": -1.0}, "expected a clip above 0"),
]


@pytest.mark.parametrize("shapes, attributes, message", WRONG, ids=str)
def test_wrong_arguments_are_refused(shapes, attributes, message) -> None:
    given = operands("LSTM", "float32", 3, 2, 4, 5, 1)
    for i, shape in shapes.items():
        given[i] = np.zeros(shape, given[i].dtype)
    options = {"opset": 14, "hidden_size": 5} | attributes
    with pytest.raises(Exception, match=message):
        Node("LSTM", given, 3, **options)(*given)


@pytest.mark.parametrize("length", [-1, 4, 2**31 - 1])
def test_wrong_lengths_are_refused(length) -> None:
    given = operands("GRU", "float32", 3, 2, 4, 5, 1)
    node = Node("GRU", given, 2, opset=14, hidden_size=5)
    wrong = [*given[:4], np.array([3, length], np.int32), given[5]]
    with pytest.raises(Exception, match=r"expected sequence_lens in \[0, 4\)"):
        node(*wrong)
    node(*given)  # the session is as good as before
