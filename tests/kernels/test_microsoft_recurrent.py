"""DynamicQuantizeLSTM against onnxruntime's CPU provider, and models of quantize_dynamic."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_nodes import Node, make_session, npu_nodes, run_cpu, run_npu
from onnxruntime.quantization import QuantType, quantize_dynamic

OP, MICROSOFT = "DynamicQuantizeLSTM", "com.microsoft"
INPUTS, HIDDEN, STEPS = 8, 16, 6
WEIGHTS = (1, 2, 8, 9, 10, 11)  # constants, as in files


def operands(rng, batch: int, directions: int, kind=np.int8, zero: int = 0, per_column=False):
    # Signed weights of 7 bits: without VNNI the CPU provider saturates sums of two products.
    low, high = (-64, 64) if kind == np.int8 else (0, 256)
    step = 2 if kind == np.int8 else 1
    scales = (directions, 4 * HIDDEN) if per_column else (directions,)

    def weight(depth: int) -> np.ndarray:
        return rng.integers(low, high, (directions, depth, 4 * HIDDEN)).astype(kind)

    def floats(*shape: int, size: float = 1) -> np.ndarray:
        return (size * rng.standard_normal(shape)).astype(np.float32)

    quantised = []
    for _ in "WR":
        quantised.append((step * rng.uniform(0.003, 0.006, scales)).astype(np.float32))
        quantised.append(np.full(scales, zero, kind))
    state = (directions, batch, HIDDEN)
    return [
        floats(STEPS, batch, INPUTS), weight(INPUTS), weight(HIDDEN),
        floats(directions, 8 * HIDDEN, size=0.3), None, floats(*state, size=0.5), floats(*state),
        floats(directions, 3 * HIDDEN, size=0.3), *quantised,
    ]  # fmt: skip


def options(directions: int = 1, **more) -> dict:
    direction = "bidirectional" if directions == 2 else "forward"
    return {"hidden_size": HIDDEN, "direction": direction, "domain": MICROSOFT} | more


# (type of the weights, zero point, scales for each column); the CPU provider has no others
KINDS = [(np.int8, 0, False), (np.int8, 0, True), (np.uint8, 128, False), (np.uint8, 120, False),
         (np.int8, 3, False)]  # fmt: skip


@pytest.mark.parametrize("constant", [WEIGHTS, ()], ids=["constant", "given"])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("kind, zero, per_column", KINDS)
def test_one_sequence(kind, zero, per_column, directions, constant) -> None:
    given = operands(np.random.default_rng(1), 1, directions, kind, zero, per_column)
    got = run_npu(OP, given, 3, constant=constant, **options(directions))
    expected = run_cpu(OP, given, 3, constant=WEIGHTS, **options(directions))
    for value, wanted in zip(got, expected, strict=True):
        # Products of integers are exact; activations round, and by that a state may be quantised
        # to the next of 255 steps of its range, times a weight below 1.
        assert np.abs(value - wanted).max() <= 2 / 255
        assert np.mean(np.abs(value - wanted) > 2e-6) < 0.05


def test_sequences_do_not_depend_on_each_other() -> None:
    """Beside the range of all inputs; with onnxruntime results depend on the number of threads."""
    rng = np.random.default_rng(2)
    given = operands(rng, 5, 2)
    lengths = np.array([6, 3, 0, 5, 1], np.int32)
    given[4] = lengths
    node = Node(OP, given, 3, constant=WEIGHTS, **options(2))
    y, hidden, memory = node(*given)
    for b, length in enumerate(lengths):
        alone = [a[:, b : b + 1] if i in (0, 5, 6) else a for i, a in enumerate(given)]
        alone[4] = lengths[b : b + 1]
        # A second sequence has the range of all inputs.
        extremes = np.resize(np.array([given[0].min(), given[0].max()], np.float32), (STEPS, 1, 8))
        alone[0] = np.concatenate([alone[0], extremes], 1)
        alone[4] = np.append(alone[4], np.int32(STEPS))
        for i in (5, 6):
            alone[i] = np.concatenate([alone[i], alone[i]], 1)
        single = node(*alone)
        np.testing.assert_allclose(single[0][:length, :, 0], y[:length, :, b], rtol=0, atol=1e-6)
        np.testing.assert_allclose(single[1][:, 0], hidden[:, b], rtol=0, atol=1e-6)
        np.testing.assert_allclose(single[2][:, 0], memory[:, b], rtol=0, atol=1e-6)
    expected = run_cpu(OP, given, 3, constant=WEIGHTS, **options(2))
    # The ranges of states differ by at most their size; a step of them is 1 / 255.
    np.testing.assert_allclose(y, expected[0], rtol=0, atol=6 / 255)


def lstm_model() -> onnx.ModelProto:
    rng = np.random.default_rng(3)
    constants = {
        "W": rng.uniform(-0.3, 0.3, (1, 4 * HIDDEN, INPUTS)),
        "R": rng.uniform(-0.3, 0.3, (1, 4 * HIDDEN, HIDDEN)),
        "B": rng.uniform(-0.3, 0.3, (1, 8 * HIDDEN)),
    }
    node = helper.make_node("LSTM", ["x", "W", "R", "B"], ["y", "h"], hidden_size=HIDDEN)
    graph = helper.make_graph(
        [node],
        "lstm",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [STEPS, 1, INPUTS])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "yh"],
        [onnx.numpy_helper.from_array(v.astype(np.float32), k) for k, v in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("kind", [QuantType.QInt8, QuantType.QUInt8])
def test_model_of_quantize_dynamic(tmp_path, kind) -> None:
    model, path = lstm_model(), tmp_path / "quantised.onnx"
    quantize_dynamic(model, path, weight_type=kind, reduce_range=True)
    npu, cpu = (make_session(path.read_bytes(), p) for p in ("NPUExecutionProvider",
                                                             "CPUExecutionProvider"))  # fmt: skip
    assert npu_nodes(npu) == [OP]
    x = np.random.default_rng(4).standard_normal((STEPS, 1, INPUTS)).astype(np.float32)
    plain = make_session(model).run(None, {"x": x})
    for value, wanted, exact in zip(npu.run(None, {"x": x}), cpu.run(None, {"x": x}), plain,
                                    strict=True):  # fmt: skip
        np.testing.assert_allclose(value, wanted, rtol=0, atol=2 / 255)
        np.testing.assert_allclose(value, exact, rtol=0, atol=0.02)  # of the quantisation


@pytest.mark.parametrize("changed, message", [
    ({1: (1, INPUTS, 4 * HIDDEN + 4)}, "expected W"),
    ({2: (1, HIDDEN + 1, 4 * HIDDEN)}, "expected W"),
    ({1: (2, INPUTS, 4 * HIDDEN)}, "expected W of shape"),
    ({8: (2,)}, "W_scale"),
    ({11: (1, 3)}, "R_zero_point"),
    ({3: (1, HIDDEN)}, "expected B"),
    ({5: (1, 3, HIDDEN)}, "expected initial_h"),
])  # fmt: skip
def test_wrong_operands_are_refused(changed, message) -> None:
    given = operands(np.random.default_rng(5), 1, 1)
    for i, shape in changed.items():
        given[i] = np.ones(shape, given[i].dtype)
    with pytest.raises(Exception, match=message):
        Node(OP, given, 3, **options())(*given)
