"""npu:: nodes with a function body, with several, and with none."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnxruntime as ort
import onnxruntime_npu
import pytest
from onnx import TensorProto, helper
from provider_models import (
    CPU,
    NPU,
    make_model,
    npu_session,
    providers_of,
    rms_norm,
    rms_norm_function,
    rms_norm_node,
)

FLOAT = TensorProto.FLOAT
GAMMA = np.linspace(0.5, 2, 8, dtype=np.float32)
X = np.random.default_rng(3).standard_normal((3, 8), dtype=np.float32)
EXPECTED = rms_norm(X, GAMMA)
# A body that computes ten times the kernel's result shows which of the two ran.
TEN = 10.0


def one_node_model(functions=(), node=None) -> bytes:
    return make_model(
        [node or rms_norm_node("x", "y", "rms")],
        [("x", FLOAT, ["n", 8])],
        [("y", FLOAT, ["n", 8])],
        {"gamma": GAMMA},
        functions,
    )


def check_on_npu(session: ort.InferenceSession) -> None:
    assert providers_of(session) == {"rms": NPU}
    np.testing.assert_allclose(session.run(None, {"x": X})[0], EXPECTED, rtol=1e-5)


def npu_options() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.add_provider_for_devices([d for d in ort.get_ep_devices() if d.ep_name == NPU], {})
    return options


@pytest.mark.parametrize("functions", [(), (rms_norm_function(scale=TEN),)], ids=["bare", "body"])
def test_selected_by_name(functions):
    check_on_npu(npu_session(one_node_model(functions)))


@pytest.mark.parametrize("functions", [(), (rms_norm_function(scale=TEN),)], ids=["bare", "body"])
def test_selected_by_device(functions):
    check_on_npu(ort.InferenceSession(one_node_model(functions), npu_options()))


@pytest.mark.parametrize("functions", [(), (rms_norm_function(scale=TEN),)], ids=["bare", "body"])
def test_library_registered_by_the_user(functions):
    options = ort.SessionOptions()
    options.register_custom_ops_library(onnxruntime_npu.get_library_path())
    for _ in range(2):
        check_on_npu(npu_session(one_node_model(functions), options))


def test_session_options_can_be_shared_by_models_without_bodies():
    options = ort.SessionOptions()
    for _ in range(3):
        check_on_npu(npu_session(one_node_model(), options))


def test_set_providers_on_a_model_without_bodies():
    session = npu_session(one_node_model())
    session.set_providers([NPU])
    check_on_npu(session)


def test_function_body_runs_on_cpu_only():
    session = ort.InferenceSession(one_node_model((rms_norm_function(scale=TEN),)), providers=[CPU])
    np.testing.assert_allclose(session.run(None, {"x": X})[0], TEN * EXPECTED, rtol=1e-5)


def test_model_without_bodies_on_cpu_reports_what_is_missing():
    with pytest.raises(Exception, match=r"npu:NPURmsNorm.* is not a registered function/op"):
        ort.InferenceSession(one_node_model(), providers=[CPU])
    options = ort.SessionOptions()
    options.register_custom_ops_library(onnxruntime_npu.get_library_path())
    with pytest.raises(Exception, match=r"npu:NPURmsNorm has no CPU form in this model"):
        ort.InferenceSession(one_node_model(), options, providers=[CPU])


def overload_model() -> bytes:
    """One operator type, two bodies: `plain` and `ten`, selected by the node's overload."""
    return make_model(
        [rms_norm_node("x", "a", "first", "plain"), rms_norm_node("a", "y", "second", "ten")],
        [("x", FLOAT, ["n", 8])],
        [("y", FLOAT, ["n", 8])],
        {"gamma": GAMMA},
        [rms_norm_function("plain"), rms_norm_function("ten", TEN)],
    )


def test_each_overload_uses_its_own_body_on_the_cpu():
    session = ort.InferenceSession(overload_model(), providers=[CPU])
    expected = TEN * rms_norm(EXPECTED, GAMMA)
    np.testing.assert_allclose(session.run(None, {"x": X})[0], expected, rtol=1e-5)


@pytest.mark.parametrize("route", ["name", "device"])
def test_overloads_run_on_the_npu(route):
    model = overload_model()
    session = npu_session(model) if route == "name" else ort.InferenceSession(model, npu_options())
    assert providers_of(session) == {"first": NPU, "second": NPU}
    expected = rms_norm(EXPECTED, GAMMA)
    np.testing.assert_allclose(session.run(None, {"x": X})[0], expected, rtol=1e-5)


def test_refused_node_runs_its_body_and_is_reported_with_the_reason():
    model = make_model(
        [
            helper.make_node("Cast", ["x"], ["wide"], "widen", to=TensorProto.DOUBLE),
            helper.make_node("NPURmsNorm", ["wide", "gamma"], ["y", ""], "rms", domain="npu"),
        ],
        [("x", FLOAT, ["n", 8])],
        [("y", TensorProto.DOUBLE, ["n", 8])],
        {"gamma": GAMMA.astype(np.float64)},
        [double_rms_norm_function()],
    )
    session = npu_session(model)
    (row,) = (r for r in onnxruntime_npu.assignment(session) if r["node"] == "rms")
    assert row["op_type"] == "NPURmsNorm" and row["domain"] == "npu" and row["provider"] == CPU
    assert "expected" in row["reason"] and "float64" in row["reason"]
    np.testing.assert_allclose(session.run(None, {"x": X})[0], EXPECTED, rtol=1e-5)
    with pytest.raises(Exception, match=r"cpu_fallback is 'refuse', but .*NPURmsNorm 'rms': input"):
        npu_session(model, cpu_fallback="refuse")


def double_rms_norm_function():
    function = rms_norm_function()
    kept = [n for n in function.node if "scale" not in n.output and n.output[0] != "y"]
    del function.node[:]
    function.node.extend(kept)
    function.node.append(helper.make_node("Identity", ["scaled"], ["y"]))
    return function


def test_unsupported_type_without_a_body_is_an_error():
    model = make_model(
        [rms_norm_node("x", "y", "rms")],
        [("x", TensorProto.DOUBLE, [2, 8])],
        [("y", TensorProto.DOUBLE, [2, 8])],
        {"gamma": GAMMA.astype(np.float64)},
    )
    with pytest.raises(Exception, match=r"NPURmsNorm.*'rms': input self: expected .*, got float64"):
        npu_session(model)


def test_unimplemented_attribute_is_a_refusal_reason():
    node = rms_norm_node("x", "y", "rms")
    node.attribute.append(helper.make_attribute("mystery", 3))
    function = rms_norm_function()
    function.attribute.append("mystery")
    rows = onnxruntime_npu.assignment(npu_session(one_node_model([function], node)))
    assert "attribute 'mystery' is not implemented" in rows[0]["reason"]


@pytest.mark.parametrize("with_body", [False, True])
def test_attribute_of_the_wrong_kind_is_never_ignored(with_body):
    node = helper.make_node(
        "NPURmsNorm", ["x", "gamma"], ["y", ""], "rms", domain="npu", epsilon="tiny"
    )
    functions = [rms_norm_function()] if with_body else []
    if with_body:
        rows = onnxruntime_npu.assignment(npu_session(one_node_model(functions, node)))
        assert "expected attribute 'epsilon' to be a float" in rows[0]["reason"]
    else:
        with pytest.raises(Exception, match=r"NPURmsNorm.*'rms': expected attribute 'epsilon' to"):
            npu_session(one_node_model(functions, node))


def test_unknown_operator_is_one_clear_line():
    node = helper.make_node("NPUNoSuchThing", ["x", "gamma"], ["y"], "odd", domain="npu")
    with pytest.raises(Exception, match=r"\[NPUNoSuchThing\] expected an operator of") as raised:
        npu_session(one_node_model(node=node))
    assert "\n" not in str(raised.value).strip()


def test_wrong_arity_is_one_clear_line():
    node = helper.make_node("NPURmsNorm", ["x"], ["y"], "rms", domain="npu")
    with pytest.raises(Exception, match=r"rms.*NPURmsNorm.* input size 1 not in range") as raised:
        npu_session(one_node_model(node=node))
    assert "\n" not in str(raised.value).strip()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
def test_model_without_bodies_infers_output_types(dtype):
    """The type of `mid` is not declared and gamma's differs: it must be inferred from x."""
    x = X.astype(dtype)
    element = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}[x.dtype.name]
    model = make_model(
        [
            helper.make_node("NPURmsNorm", ["x", "gamma"], ["mid", "rstd"], "rms", domain="npu"),
            helper.make_node("Cast", ["mid"], ["y"], "cast", to=FLOAT),
            helper.make_node("Identity", ["rstd"], ["r"], "identity"),
        ],
        [("x", element, ["n", 8])],
        [("y", FLOAT, None), ("r", FLOAT, None)],
        {"gamma": GAMMA},
    )
    session = npu_session(model)
    y, rstd = session.run_with_ort_values(None, {"x": onnxruntime_npu.ortvalue_from_numpy(x)})
    wide = x.astype(np.float32)
    # y is rounded once to x's dtype; 2 ulp.
    np.testing.assert_allclose(y.numpy(), rms_norm(wide, GAMMA), rtol=2.0**-7)
    assert rstd.numpy().shape == (3, 1)


def test_empty_constant_counts_as_an_absent_optional_input(rng):
    shape = [1, 2, 3, 8]
    x, cos, sin = (rng.standard_normal(shape, dtype=np.float32) for _ in range(3))
    results = []
    for rotate in ("", "empty"):
        inputs = ["x", "cos", "sin", *([rotate] if rotate else [])]
        node = helper.make_node("NPURotaryMul", inputs, ["y"], "rotary", domain="npu")
        constants = {"cos": cos, "sin": sin, "empty": np.zeros(0, np.float32)}
        model = make_model([node], [("x", FLOAT, shape)], [("y", FLOAT, shape)], constants)
        session = npu_session(model)
        assert providers_of(session) == {"rotary": NPU}
        results.append(session.run(None, {"x": x})[0])
    np.testing.assert_array_equal(*results)


def test_invalid_utf8_is_quoted_and_model_stays_on_the_npu(capfd):
    node = helper.make_node("NPUGeluV2", ["x"], ["y"], domain="npu", approximate=b"\xff\xfe")
    with pytest.raises(Exception, match=r"got '\\xff\\xfe'"):
        npu_session(one_node_model(node=node))
    assert "Falling back" not in capfd.readouterr().out
