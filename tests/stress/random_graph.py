"""Random models of claimed operators, with a bound on how far two providers may differ.

Every value carries the largest magnitude that it can have and a bound on its error, which each
operator propagates: it is the tolerance of a comparison. Operators that are not continuous take
only values without an error, which are moved inputs and integers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import exp, prod
from typing import Any

import numpy as np
from onnx import ModelProto, helper, numpy_helper

OPSET = 21
EPS = 2.0**-21  # of one operation in float32: functions may be off by several units
LARGEST = 1e4  # magnitude that a value may reach
MOST_ELEMENTS = 4000


@dataclass
class Value:
    """A tensor of the graph."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bound: float
    error: float = 0.0


@dataclass
class Graph:
    """What has been generated so far."""

    rng: np.random.Generator
    values: list[Value] = field(default_factory=list)
    nodes: list = field(default_factory=list)
    inputs: dict[str, np.ndarray] = field(default_factory=dict)
    constants: dict[str, np.ndarray] = field(default_factory=dict)

    def pick(self, *dtypes: str, rank: int = 0, exact: bool = False) -> Value:
        """A value of one of the types and of at least this rank, preferably a late one."""
        fitting = [
            v
            for v in self.values
            if v.dtype in dtypes and len(v.shape) >= rank and not (exact and v.error)
        ]
        if not fitting:
            raise Unfit
        return fitting[-1 - min(int(self.rng.exponential(4)), len(fitting) - 1)]

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = array
        return name

    def number(self, dtype: str, shape, bound: float = 1) -> Value:
        """A new constant with random elements."""
        array = draw(self.rng, dtype, shape, bound)
        return Value(self.constant(array), dtype, tuple(shape), bound)

    def add(self, op: str, inputs: list, *outputs: Value, **attributes: Any) -> None:
        """Appends a node; refuses values that become too large."""
        for out in outputs:
            if not out.bound <= LARGEST or out.error > 0.01 or prod(out.shape) > MOST_ELEMENTS:
                raise Unfit
        names = [v.name if isinstance(v, Value) else v for v in inputs]
        self.nodes.append(helper.make_node(op, names, [o.name for o in outputs], **attributes))
        self.values += outputs

    def new(self, like: Value, shape=None, bound=None, error=None, dtype=None) -> Value:
        count = len(self.values)
        return Value(
            f"v{count}",
            dtype or like.dtype,
            tuple(like.shape if shape is None else shape),
            like.bound if bound is None else bound,
            like.error if error is None else error,
        )


class Unfit(Exception):
    """The operator does not fit what there is."""


def draw(rng: np.random.Generator, dtype: str, shape, bound: float) -> np.ndarray:
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if dtype.startswith("int"):
        return rng.integers(-int(bound), int(bound) + 1, shape).astype(dtype)
    return np.asarray(rng.uniform(-bound, bound, shape), dtype)


# Functions whose slope is at most the number, and their own bound, if they have one.
SMOOTH = {
    "Relu": (1, None),
    "Abs": (1, None),
    "Neg": (1, None),
    "Identity": (1, None),
    "Tanh": (1, 1),
    "Sigmoid": (0.25, 1),
    "Erf": (1.2, 1),
    "Sin": (1, 1),
    "Cos": (1, 1),
    "Softsign": (1, 1),
    "HardSigmoid": (0.2, 1),
    "LeakyRelu": (1, None),
    "Elu": (1, None),
    "Gelu": (1.2, None),
    "Mish": (1.1, None),
    "HardSwish": (1.5, None),
    "Atan": (1, 1.6),
}


def smooth(g: Graph) -> None:
    op = str(g.rng.choice(list(SMOOTH)))
    slope, bound = SMOOTH[op]
    x = g.pick("float32")
    top = x.bound if bound is None else bound
    g.add(op, [x], g.new(x, bound=top, error=slope * x.error + EPS * max(1, x.bound)))


def exponential(g: Graph) -> None:
    x = g.pick("float32")
    if x.bound > 6:
        raise Unfit
    top = exp(x.bound)
    g.add("Exp", [x], g.new(x, bound=top, error=top * (x.error + EPS)))


def arithmetic(g: Graph) -> None:
    a = g.pick("float32", "int64", "int32")
    b = g.pick(a.dtype)
    op = str(g.rng.choice(["Add", "Sub", "Mul", "Max", "Min", "Sum", "Mean"]))
    if a.dtype != "float32" and op in ("Sum", "Mean"):
        raise Unfit
    try:
        shape = np.broadcast_shapes(a.shape, b.shape)
    except ValueError:
        raise Unfit from None
    bound, error = max(a.bound, b.bound), a.error + b.error
    if op in ("Add", "Sub", "Sum"):
        bound = a.bound + b.bound
    elif op == "Mul":
        bound = a.bound * b.bound
        error = a.error * (b.bound + b.error) + b.error * a.bound
    if a.dtype == "float32":
        error += EPS * bound
    g.add(op, [a, b], g.new(a, shape, bound, error))


def comparison(g: Graph) -> None:
    a = g.pick("float32", "int64", "int32", exact=True)
    op = str(g.rng.choice(["Less", "Greater", "Equal", "LessOrEqual"]))
    b = g.number(a.dtype, [1] * len(a.shape), min(a.bound, 3))
    g.add(op, [a, b], g.new(a, bound=1, error=0, dtype="bool"))


def choice(g: Graph) -> None:
    c, a = g.pick("bool"), g.pick("float32", "int64")
    b = g.number(a.dtype, a.shape[-1:], 1)
    try:
        shape = np.broadcast_shapes(c.shape, a.shape)
    except ValueError:
        raise Unfit from None
    g.add("Where", [c, a, b], g.new(a, shape, max(a.bound, 1)))


def conversion(g: Graph) -> None:
    x = g.pick("float32", "int64", "int32", "bool", exact=True)
    to = str(g.rng.choice(["float32", "int64", "int32", "bool"]))
    target = helper.np_dtype_to_tensor_dtype(np.dtype(to))
    g.add("Cast", [x], g.new(x, bound=1 if to == "bool" else x.bound, dtype=to), to=target)


def transposition(g: Graph) -> None:
    x = g.pick("float32", "int64", "bool", rank=2)
    perm = g.rng.permutation(len(x.shape))
    g.add("Transpose", [x], g.new(x, [x.shape[p] for p in perm]), perm=perm.tolist())


def reshaping(g: Graph) -> None:
    x = g.pick("float32", "int64", rank=2)
    k = int(g.rng.integers(1, len(x.shape)))
    shape = (
        [prod(x.shape[:k]), *x.shape[k:]]
        if g.rng.random() < 0.5
        else [*x.shape[:k], 1, *x.shape[k:]]
    )
    g.add("Reshape", [x, g.constant(np.array(shape))], g.new(x, shape), allowzero=1)


def joining(g: Graph) -> None:
    a = g.pick("float32", "int64", rank=1)
    axis = int(g.rng.integers(0, len(a.shape)))
    b = g.number(a.dtype, [*a.shape[:axis], int(g.rng.integers(1, 4)), *a.shape[axis + 1 :]], 1)
    shape = list(a.shape)
    shape[axis] += b.shape[axis]
    g.add("Concat", [a, b], g.new(a, shape, max(a.bound, 1)), axis=axis)


def slicing(g: Graph) -> None:
    x = g.pick("float32", "int64", rank=1)
    axis = int(g.rng.integers(0, len(x.shape)))
    start, step = int(g.rng.integers(0, 3)), int(g.rng.choice([1, 2, -1]))
    kept = x.shape[axis : axis + 1]
    length = len(range(kept[0])[start::step])
    shape = [*x.shape[:axis], length, *x.shape[axis + 1 :]]
    ends = 2**31 if step > 0 else -(2**31)
    lists = [g.constant(np.array([n])) for n in (start, ends, axis, step)]
    if length == 0 or (step < 0 and start >= kept[0]):
        raise Unfit
    g.add("Slice", [x, *lists], g.new(x, shape))


def gathering(g: Graph) -> None:
    x = g.pick("float32", "int64", rank=1)
    axis = int(g.rng.integers(0, len(x.shape)))
    if x.shape[axis] == 0:
        raise Unfit
    at = g.rng.integers(-x.shape[axis], x.shape[axis], g.rng.integers(1, 4, g.rng.integers(1, 3)))
    shape = [*x.shape[:axis], *at.shape, *x.shape[axis + 1 :]]
    g.add("Gather", [x, g.constant(at)], g.new(x, shape), axis=axis)


def padding(g: Graph) -> None:
    x = g.pick("float32", rank=1)
    pads = g.rng.integers(0, 3, 2 * len(x.shape))
    mode = str(g.rng.choice(["constant", "edge", "wrap"]))
    rank = len(x.shape)
    shape = [n + int(pads[d] + pads[d + rank]) for d, n in enumerate(x.shape)]
    if 0 in x.shape or any(max(pads[d], pads[d + rank]) > n for d, n in enumerate(x.shape)):
        raise Unfit
    g.add("Pad", [x, g.constant(pads)], g.new(x, shape), mode=mode)


def reduction(g: Graph) -> None:
    op = str(
        g.rng.choice(
            ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceLogSumExp"]
        )
    )
    x = g.pick("float32", rank=1)
    axis = int(g.rng.integers(0, len(x.shape)))
    keep = int(g.rng.integers(0, 2))
    n = x.shape[axis]
    shape = [*x.shape[:axis], *([1] * keep), *x.shape[axis + 1 :]]
    bound, error = x.bound, x.error + EPS * x.bound
    if n == 0:
        raise Unfit
    if op in ("ReduceSum", "ReduceL1"):
        bound, error = n * x.bound, n * (x.error + EPS * n * x.bound)
    elif op == "ReduceLogSumExp":
        bound, error = x.bound + n, x.error + EPS * (x.bound + n)
    elif op == "ReduceMean":
        error = x.error + EPS * n * x.bound
    g.add(op, [x, g.constant(np.array([axis]))], g.new(x, shape, bound, error), keepdims=keep)


def softmax(g: Graph) -> None:
    x = g.pick("float32", rank=1)
    axis = int(g.rng.integers(0, len(x.shape)))
    op = str(g.rng.choice(["Softmax", "LogSoftmax"]))
    bound = 1.0 if op == "Softmax" else 2 * x.bound + 10
    error = 2 * x.error + 8 * EPS * max(1, 2 * x.bound + 10)
    g.add(op, [x], g.new(x, bound=bound, error=error), axis=axis)


def normalization(g: Graph) -> None:
    x = g.pick("float32", rank=1)
    scale, bias = (g.number("float32", x.shape[-1:]) for _ in range(2))
    if x.shape[-1] == 0:
        raise Unfit
    # The deviation is at least the root of epsilon.
    error = 8 * (2 * x.error + EPS * x.bound) / 0.1 + 8 * EPS
    top = x.shape[-1] ** 0.5 + 1
    g.add("LayerNormalization", [x, scale, bias], g.new(x, bound=top, error=error), epsilon=0.01)


def product(g: Graph) -> None:
    a = g.pick("float32", rank=2)
    k, n = a.shape[-1], int(g.rng.integers(1, 9))
    b = g.number("float32", [k, n])
    bound = max(k, 1) * a.bound
    error = k * (a.error + EPS * k * a.bound)
    shape = [*a.shape[:-1], n]
    kind = g.rng.random()
    if kind < 0.3 and len(a.shape) == 2:
        c = g.number("float32", [n])
        g.add("Gemm", [a, b, c], g.new(a, shape, bound + 1, error + EPS * bound))
    elif kind < 0.5:
        g.add("Einsum", [a, b], g.new(a, shape, bound, error), equation="...k,kn->...n")
    else:
        g.add("MatMul", [a, b], g.new(a, shape, bound, error))


def images(g: Graph, op: str, **attributes: Any) -> None:
    x = g.pick("float32", rank=3)
    spatial = len(x.shape) - 2
    if spatial > 3 or 0 in x.shape or min(x.shape[2:]) < 2:
        raise Unfit
    kernel = [2] * spatial
    if op == "Conv":
        w = g.number("float32", [3, x.shape[1], *kernel])
        terms = x.shape[1] * 2**spatial
        shape = [x.shape[0], 3, *(n + 1 for n in x.shape[2:])]
        out = g.new(x, shape, terms * x.bound, terms * (x.error + EPS * terms * x.bound))
        g.add(op, [x, w], out, kernel_shape=kernel, pads=[1] * 2 * spatial)
    else:
        shape = [*x.shape[:2], *(n - 1 for n in x.shape[2:])]
        out = g.new(x, shape, error=x.error + EPS * 2**spatial * x.bound)
        g.add(op, [x], out, kernel_shape=kernel)


def regions(g: Graph) -> None:
    x = g.pick("float32", rank=4)
    if len(x.shape) != 4 or 0 in x.shape:
        raise Unfit
    count = int(g.rng.integers(1, 4))
    corners = np.sort(g.rng.uniform(-1, 6, (count, 2, 2)).astype(np.float32), 1).reshape(count, 4)
    lists = [g.constant(corners), g.constant(g.rng.integers(0, x.shape[0], count))]
    # Places between pixels are rounded to float32 on the CPU.
    out = g.new(x, [count, x.shape[1], 2, 3], error=x.error + 64 * EPS * x.bound)
    g.add("RoiAlign", [x, *lists], out, output_height=2, output_width=3)


def transform(g: Graph) -> None:
    x = g.pick("float32", rank=1)
    n = x.shape[-1]
    if n == 0:
        raise Unfit
    real = g.new(x, [*x.shape, 1])
    g.add("Unsqueeze", [x, g.constant(np.array([-1]))], real)
    out = g.new(x, [*x.shape, 2], n * x.bound, n * (x.error + EPS * n * x.bound))
    g.add("DFT", [real], out)


def recurrence(g: Graph) -> None:
    x = g.pick("float32", rank=3)
    if len(x.shape) != 3 or 0 in x.shape or x.bound > 4:
        raise Unfit
    op = str(g.rng.choice(["LSTM", "GRU", "RNN"]))
    gates, n, steps = {"LSTM": 4, "GRU": 3, "RNN": 1}[op], 4, x.shape[0]
    w = g.number("float32", [1, gates * n, x.shape[2]], 0.2)
    r = g.number("float32", [1, gates * n, n], 0.2)
    # A step's state differs by the input's error and by less than the state's before.
    error = steps * 4 * (x.shape[2] * x.error + EPS * (x.shape[2] * x.bound + n))
    g.add(op, [x, w, r], g.new(x, [steps, 1, x.shape[1], n], 1.0, error), hidden_size=n)


OPERATORS: list[Callable[[Graph], None]] = [
    smooth, smooth, exponential, arithmetic, arithmetic, comparison, choice, conversion,
    transposition, reshaping, joining, slicing, gathering, padding, reduction, reduction, softmax,
    normalization, product, product, recurrence, regions, transform,
    lambda g: images(g, "Conv"), lambda g: images(g, "MaxPool"), lambda g: images(g, "AveragePool"),
]  # fmt: skip


def random_graph(seed: int) -> tuple[ModelProto, dict[str, np.ndarray], list[Value]]:
    """A model of 5 to 30 nodes, its inputs, and its outputs with their tolerances."""
    g = Graph(np.random.default_rng(seed))
    for i in range(int(g.rng.integers(1, 4))):
        dtype = str(g.rng.choice(["float32", "float32", "int64", "int32"])) if i else "float32"
        shape = tuple(g.rng.integers(1, 6, g.rng.integers(2, 5)).tolist())
        bound = float(g.rng.integers(1, 4))
        g.inputs[f"x{i}"] = draw(g.rng, dtype, shape, bound)
        g.values.append(Value(f"x{i}", dtype, shape, bound))
    inputs = list(g.values)
    wanted = int(g.rng.integers(5, 30))  # some operators are two nodes
    for _ in range(40 * wanted):
        if len(g.nodes) >= wanted:
            break
        try:
            OPERATORS[g.rng.integers(len(OPERATORS))](g)
        except Unfit:
            continue
    made = g.values[len(inputs) :]
    used = {name for node in g.nodes for name in node.input}
    outputs = [v for v in made if v.name not in used or g.rng.random() < 0.2]
    graph = helper.make_graph(
        g.nodes,
        f"seed_{seed}",
        [value_info(g, v) for v in inputs],
        [helper.make_tensor_value_info(v.name, element(v), None) for v in outputs],
        [numpy_helper.from_array(array, name) for name, array in g.constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    return model, g.inputs, outputs


def element(value: Value) -> int:
    return helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype))


def value_info(g: Graph, value: Value):
    """Some sizes of inputs are known when the session is made, others are not."""
    known = [n if g.rng.random() < 0.5 else f"{value.name}_{d}" for d, n in enumerate(value.shape)]
    return helper.make_tensor_value_info(value.name, element(value), known)
