"""npu_lstm and npu_gru in models: weights that are constants, whose panels are kept; one result."""

from __future__ import annotations

import onnx
import pytest
import torch
from onnxruntime_npu.opdef import Maker, Op, Sample, all_ops
from op_paths import (
    NPU,
    assert_on_npu,
    bind,
    check_close,
    make_model,
    reference,
    run_model,
    samples,
    session,
    to_ortvalue,
    to_torch,
)

WEIGHTS = {"npu_lstm": {"weight"}, "npu_gru": {"weight_input", "weight_hidden"}}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("op", "constants"),
    [
        pytest.param(all_ops()[name], constants, id=f"{name}-{'-'.join(sorted(constants))}")
        for name, weights in WEIGHTS.items()
        for constants in ({w for w in weights if w != "weight_hidden"}, weights)
    ],
)
def test_results_are_the_same(op: Op, constants: set[str], dtype: str) -> None:
    for sample in samples(op, dtype):
        bound = bind(op, sample)
        model = make_model(op, sample, body=False)
        fed = [info for info in model.graph.input if info.name.removeprefix("in_") not in constants]
        model.graph.initializer.extend(
            onnx.numpy_helper.from_array(bound[name].numpy(), f"in_{name}") for name in constants
        )
        del model.graph.input[:]
        model.graph.input.extend(fed)
        made = session(model, NPU)
        assert_on_npu(made)
        feeds = {info.name: to_ortvalue(bound[info.name.removeprefix("in_")]) for info in fed}
        for _ in range(2):
            got = [to_torch(o) for o in made.run_with_ort_values(None, feeds)]
            check_close(op, dtype, got, reference(op, sample))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", WEIGHTS)
def test_only_the_first_result_is_asked_for(name: str, dtype: str) -> None:
    """The states after a step are read by the next one all the same."""
    op = all_ops()[name]
    for sample in samples(op, dtype):
        model = make_model(op, sample, body=False)
        node = model.graph.node[0]
        node.output[1:] = [""] * (len(node.output) - 1)
        del model.graph.output[1:]
        absent = [None] * (len(op.outputs) - 1)
        got = run_model(model, NPU, op, sample) + absent
        check_close(op, dtype, got, reference(op, sample)[:1] + absent)


def _wide_layer(name: str, batch: int, width: int) -> Sample:
    """Return a call whose gates begin with panels of the GEMM, which are multiplied one by one."""
    make = Maker("float32")
    gates = 4 if name == "npu_lstm" else 3
    x, states = make(3, batch, 7), [make(1, batch, width) for _ in range(gates - 2)]
    of_input, of_hidden, *biases = (
        make(*shape, scale=width**-0.5)
        for shape in (
            (7, gates * width),
            (width, gates * width),
            (gates * width,),
            (gates * width,),
        )
    )
    flags = True, 1, 0.0, False, False, False
    if name == "npu_gru":
        lengths = make.tensor([3] * batch, "int32")
        return Sample(x, *states, of_input, of_hidden, *biases, lengths, *flags)
    mask = (torch.arange(3)[:, None, None] < 1 + torch.arange(batch)[:, None] % 3).float()
    mask = mask.expand(3, batch, width).contiguous()
    return Sample(x, torch.cat([of_input, of_hidden]), biases[0], mask, *states, *flags, True, True)


# A gate of 32 units is two panels of eight lanes or one of sixteen. 30 sequences are more than two
# threads have in tiles, and 1024 units are rows a page apart: both are multiplied at once.
@pytest.mark.parametrize("everything", [False, True], ids=["first", "all"])
@pytest.mark.parametrize(("batch", "width"), [(2, 32), (17, 64), (30, 32), (1, 64), (3, 1024)])
@pytest.mark.parametrize("name", WEIGHTS)
def test_gates_that_begin_with_panels(name: str, batch: int, width: int, everything: bool) -> None:
    op = all_ops()[name]
    sample = _wide_layer(name, batch, width)
    model = make_model(op, sample, body=False)
    asked = len(op.outputs) if everything else 1
    absent = [None] * (len(op.outputs) - asked)
    model.graph.node[0].output[asked:] = [""] * len(absent)
    del model.graph.output[asked:]
    got = run_model(model, NPU, op, sample) + absent
    check_close(op, "float32", got, reference(op, sample)[:asked] + absent)
