"""Normalisations and activations that are spelled out in single operators."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from fusion_models import BFLOAT16, ONNX_TYPES, model_of, node, run_both

RMS, LAYER = "RMSNormalization", "LayerNormalization"
GELU, SWISH, GLU = "Gelu", "Swish", "npu.fused:SwiGlu"
SHAPE = (3, 5, 48)
NUMBERS = {
    "one": 1.0,
    "half": 0.5,
    "two": 2.0,
    "three": 3.0,
    "eps": 1e-5,
    "root2": 2**0.5,
    "iroot2": 0.5**0.5,
    "tanh_scale": (2 / np.pi) ** 0.5,
    "cubic": 0.044715,
    "quick": 1.702,
    "almost": 0.6,
}


def constants_of(rng, dtype=np.float32) -> dict[str, np.ndarray]:
    numbers = {name: np.array(value, dtype) for name, value in NUMBERS.items()}
    return {
        **numbers,
        "w": rng.standard_normal(48).astype(dtype),
        "b": rng.standard_normal(48).astype(dtype),
        "column": rng.standard_normal((5, 1)).astype(dtype),
        "high": np.ones((1, 1, 1, 1), dtype),  # a scalar that adds a dimension
        "last": np.array([-1]),
        "middle": np.array([1]),
        "two_axes": np.array([1, 2]),
    }


def formula(text: str) -> list[onnx.NodeProto]:
    """Nodes from lines ``y = Op a b attribute=1``."""
    nodes = []
    for line in filter(None, (part.strip() for part in text.split(";"))):
        result, call = line.split(" = ")
        op, *words = call.split()
        attributes = dict(w.split("=") for w in words if "=" in w)
        inputs = " ".join(w for w in words if "=" not in w)
        nodes.append(node(op, inputs, result, **{k: int(v) for k, v in attributes.items()}))
    return nodes


SQUARES = "s = Pow x two; m = ReduceMean s last; v = Add m eps; r = Sqrt v;"
CENTRED = "a = ReduceMean x last; d = Sub x a; s = Pow d two; m = ReduceMean s last; v = Add m eps;"
FORMS = {
    "rms by a quotient": (RMS, SQUARES + "n = Div x r; y = Mul w n"),
    "rms by a reciprocal": (RMS, SQUARES + "q = Reciprocal r; n = Mul x q; y = Mul n w"),
    "rms by one over": (
        RMS,
        "s = Mul x x; m = ReduceMean s last; v = Add eps m; r = Sqrt v; q = Div one r;"
        "n = Mul q x; y = Mul w n",
    ),
    "layer": (LAYER, CENTRED + "r = Sqrt v; n = Div d r; p = Mul n w; y = Add p b"),
    "layer without a bias": (LAYER, CENTRED + "r = Sqrt v; n = Div d r; y = Mul w n"),
    "layer by a reciprocal": (
        LAYER,
        CENTRED + "r = Sqrt v; q = Reciprocal r; n = Mul d q; p = Mul n w; y = Add b p",
    ),
    "layer with two differences": (
        LAYER,
        "a = ReduceMean x last; d = Sub x a; e = Sub x a; s = Pow e two; m = ReduceMean s last;"
        "v = Add m eps; r = Sqrt v; n = Div d r; p = Mul n w; y = Add p b",
    ),
    "gelu": (GELU, "d = Div x root2; e = Erf d; t = Add e one; p = Mul x t; y = Mul p half"),
    "gelu of a half": (
        GELU,
        "h = Mul half x; d = Mul x iroot2; e = Erf d; t = Add one e; y = Mul h t",
    ),
    "gelu with a half of the sum": (
        GELU,
        "d = Div x root2; e = Erf d; t = Add e one; h = Mul t half; y = Mul x h",
    ),
    "gelu by tanh": (
        GELU,
        "c = Pow x three; k = Mul cubic c; a = Add x k; i = Mul tanh_scale a; f = Tanh i;"
        "t = Add one f; h = Mul half x; y = Mul h t",
    ),
    "gelu by tanh, factored": (
        GELU,
        "c = Mul x x; k = Mul c cubic; a = Add k one; z = Mul x tanh_scale; i = Mul z a;"
        "f = Tanh i; t = Add f one; h = Mul x half; y = Mul t h",
    ),
    "silu": (SWISH, "g = Sigmoid x; y = Mul x g"),
    "quick gelu": (SWISH, "k = Mul x quick; g = Sigmoid k; y = Mul g x"),
    "swiglu": (GLU, "g = Sigmoid x; s = Mul x g; y = Mul s u"),
}


def run(rng, nodes, dtype=np.float32, **options):
    feeds = {"x": rng.standard_normal(SHAPE).astype(dtype)}
    names = {name for n in nodes for name in n.input}
    if "u" in names:
        feeds["u"] = rng.standard_normal(SHAPE).astype(dtype)
    constants = {k: v for k, v in constants_of(rng, dtype).items() if k in names}
    return run_both(model_of(nodes, feeds, constants, **options), feeds)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16], ids=str)
def test_form_is_fused(rng, form, dtype):
    """Each operator of the formula rounds its result, the fused one only the last (16-bit floats
    are computed in float32). The roundings of at most twelve operators add up to 16 units of the
    type's precision, relative to values of up to about 10.
    """
    fused_into, text = FORMS[form]
    if dtype == np.float16:
        # 1e-5 is no normal number of float16.
        text = text.replace("eps", "cubic")
    nodes = formula(text)
    (fused,), (plain,), groups = run(rng, nodes, dtype)
    assert groups == {n.name: fused_into for n in nodes}
    unit = {np.float32: 2.0**-23, np.float64: 2.0**-52, np.float16: 2.0**-10}[dtype]
    error = np.abs(fused.astype(np.float64) - plain.astype(np.float64))
    assert error.max() <= 16 * unit * max(1.0, np.abs(plain.astype(np.float64)).max())
    assert np.ptp(plain.astype(np.float64)) > 1


@pytest.mark.parametrize("form", ["rms by a quotient", "layer", "gelu", "silu", "swiglu"])
def test_leading_dimensions_may_be_unknown(rng, form):
    """The last one decides whether the scale broadcasts."""
    fused_into, text = FORMS[form]
    nodes = formula(text)
    feeds = {"x": rng.standard_normal(SHAPE).astype(np.float32)}
    feeds |= {"u": feeds["x"]} if form == "swiglu" else {}
    names = {name for n in nodes for name in n.input}
    constants = {k: v for k, v in constants_of(rng).items() if k in names}
    model = onnx.load_from_string(model_of(nodes, feeds, constants))
    for value in model.graph.input:
        for d in range(2):
            value.type.tensor_type.shape.dim[d].dim_param = f"d{d}"
    (fused,), (plain,), groups = run_both(model.SerializeToString(), feeds)
    assert groups == {n.name: fused_into for n in nodes}
    np.testing.assert_allclose(fused, plain, rtol=1e-5, atol=1e-5)
    if form in ("rms by a quotient", "layer"):
        (fused,), (plain,), groups = run(rng, nodes, dynamic=True)
        assert not {RMS, LAYER} & set(groups.values())
        np.testing.assert_array_equal(fused, plain)


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16], ids=str)
def test_rms_norm_between_casts(rng, dtype):
    """As models of 16 bits compute it: in float32, rounded before the scale; the fused kernel
    rounds once, so that results differ by two roundings.
    """
    kind = ONNX_TYPES[np.dtype(dtype)]
    norm = [
        *formula("x = Cast h to=1;" + SQUARES + "n = Div x r"),
        node("Cast", "n", "c", to=kind),
        node("Mul", "w c", "z"),
    ]
    nodes = [node("Cast", "f", "h", to=kind), *norm, node("Cast", "z", "y", to=1)]
    constants = {
        "two": np.array(2, np.float32),
        "eps": np.array(1e-6, np.float32),
        "last": np.array([-1]),
        "w": rng.standard_normal(48).astype(dtype),
    }
    feeds = {"f": rng.standard_normal(SHAPE).astype(np.float32)}
    (fused,), (plain,), groups = run_both(model_of(nodes, feeds, constants), feeds)
    assert groups == {n.name: RMS for n in norm}
    unit = 2.0**-7 if dtype == BFLOAT16 else 2.0**-10
    np.testing.assert_allclose(fused, plain, rtol=2 * unit, atol=1e-6)


NEAR_MISSES = {
    "rms over another axis": "s = Pow x two; m = ReduceMean s middle; v = Add m eps; r = Sqrt v;"
    "n = Div x r; y = Mul w n",
    "rms over two axes": "s = Pow x two; m = ReduceMean s two_axes; v = Add m eps; r = Sqrt v;"
    "n = Div x r; y = Mul w n",
    "rms with a scale per row": SQUARES + "n = Div x r; y = Mul column n",
    "rms of cubes": "s = Pow x three; t = Abs s; m = ReduceMean t last; v = Add m eps; r = Sqrt v;"
    "n = Div x r; y = Mul w n",
    "rms of another value": "a = Abs x; " + SQUARES + "n = Div a r; y = Mul w n",
    "the reciprocal of a norm": SQUARES + "n = Div r x; y = Mul w n",
    "a sum without a mean": "s = Pow x two; m = ReduceSum s last; v = Add m eps; r = Sqrt v;"
    "n = Div x r; y = Mul w n",
    "an epsilon that adds a dimension": "s = Pow x two; m = ReduceMean s last; v = Add m high;"
    "r = Sqrt v; n = Div x r; y = Mul w n",
    "gelu with another constant": "d = Div x two; e = Erf d; t = Add e one; p = Mul x t;"
    "y = Mul p half",
    "gelu of another factor": "d = Div x root2; e = Erf d; t = Add e one; p = Mul x t;"
    "y = Mul p almost",
    "gelu of two values": "z = Neg x; d = Div z root2; e = Erf d; t = Add e one; p = Mul x t;"
    "y = Mul p half",
    "gelu by tanh of a square": "c = Pow x two; k = Mul cubic c; a = Add x k;"
    "i = Mul tanh_scale a; f = Tanh i; t = Add one f; h = Mul half x; y = Mul h t",
    "a half that adds a dimension": "d = Div x root2; e = Erf d; t = Add e high; p = Mul x t;"
    "y = Mul p half",
    "a gate of another value": "z = Neg x; g = Sigmoid z; k = Abs x; y = Mul k g",
}


@pytest.mark.parametrize("case", NEAR_MISSES)
def test_near_miss_is_not_fused(rng, case):
    (fused,), (plain,), groups = run(rng, formula(NEAR_MISSES[case]))
    assert groups == {}
    np.testing.assert_array_equal(fused, plain)


def test_a_layer_norm_whose_mean_is_an_output_is_an_rms_norm(rng):
    """What remains when the mean has another reader is the norm of the differences."""
    nodes = formula(CENTRED + "r = Sqrt v; n = Div d r; y = Mul n w")
    x = rng.standard_normal(SHAPE).astype(np.float32)
    names = {name for n in nodes for name in n.input}
    constants = {k: v for k, v in constants_of(rng).items() if k in names}
    fused, plain, groups = run_both(model_of(nodes, {"x": x}, constants, ("y", "a")), {"x": x})
    assert groups == {n.name: RMS for n in nodes[2:]}
    np.testing.assert_allclose(fused[0], plain[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(fused[1], plain[1])
