"""The program behind `make onnx-backend`: what it counts as passed, failed and not claimed."""

from __future__ import annotations

import numpy as np
import onnx_backend
import pytest
from onnx import TensorProto, helper
from onnx_nodes import make_model


def case(name: str, op_type: str, x: np.ndarray, y: np.ndarray, **attributes):
    model = onnx_backend.loadable(make_model(op_type, [x], **attributes))
    return onnx_backend.Case(name, model, [([x], [y])], rtol=1e-3, atol=1e-7)


def test_outcomes() -> None:
    x = np.array([-1.5, 2.0], np.float32)
    deep = x.reshape(*[1] * 12, 2)  # of more dimensions than the NPU's tensors have
    tally = onnx_backend.Tally()
    onnx_backend.judge(case("right", "Abs", x, abs(x)), tally)
    onnx_backend.judge(case("wrong", "Abs", x, x), tally)
    onnx_backend.judge(case("deep", "Abs", deep, abs(deep)), tally)
    assert tally.passed == ["right"] and tally.not_counted == ["wrong"]
    ((reason, names),) = tally.not_claimed.items()
    assert reason.startswith("Abs: expected tensors of rank <= 12") and names == {"deep"}
    assert tally.share == 0.5
    assert "1 passed, 0 failed, 1 not claimed, 1 not counted: 50.0%" in onnx_backend.report(
        tally, verbose=False
    )


def test_a_claimed_test_that_fails_on_the_npu_alone_is_a_failure(monkeypatch) -> None:
    x = np.array([-1.5, 2.0], np.float32)
    right = case("right", "Abs", x, abs(x))
    run = onnx_backend.run

    def run_wrong(of, session):
        if onnx_backend.NPU in session.get_providers():
            raise AssertionError("Not equal")
        run(of, session)

    monkeypatch.setattr(onnx_backend, "run", run_wrong)
    tally = onnx_backend.Tally()
    onnx_backend.judge(right, tally)
    assert list(tally.failed) == ["right"] and tally.share == 0


@pytest.mark.parametrize("dtype", ["FLOAT8E4M3FN", "INT4", "BFLOAT16", "FLOAT"])
def test_tensors_of_every_type_reach_onnxruntime_and_come_back(dtype) -> None:
    values = [-2.0, 0.0, 1.0, 3.0, -1.0]
    proto = helper.make_tensor("x", getattr(TensorProto, dtype), [5], values)
    there = onnx_backend.array_of(onnx_backend.ort_value(proto))
    assert there.astype(np.float32).tolist() == values


def test_exit_code_of_the_program(capsys, monkeypatch) -> None:
    x = np.array([-1.5, 2.0], np.float32)
    deep = x.reshape(*[1] * 12, 2)
    right, unclaimed = case("right", "Abs", x, abs(x)), case("deep", "Abs", deep, abs(deep))
    monkeypatch.setattr(onnx_backend, "cases", lambda part: [right])
    assert onnx_backend.main([]) == 0
    assert "1 passed, 0 failed, 0 not claimed" in capsys.readouterr().out
    monkeypatch.setattr(onnx_backend, "cases", lambda part: [right] * 9 + [unclaimed])
    assert onnx_backend.main(["-v"]) == 1
    assert "    deep" in capsys.readouterr().out.splitlines()
