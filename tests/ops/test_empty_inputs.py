"""Optional inputs given as empty constants: a node takes each for absent, whatever its type is.

Every sample that leaves optional inputs out is run with empty constants in their places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
import onnxruntime as ort
import pytest
import torch
from onnxruntime_npu.opdef import Op, Sample, all_ops, attach_function_bodies
from onnxruntime_npu.opdef import dtypes as dt
from onnxruntime_npu.opdef.onnx_schema import register_schemas
from op_paths import (
    CPU,
    NPU,
    bind,
    check_close,
    make_model,
    reference,
    run_model,
    run_session,
    samples,
    session,
)

pytestmark = pytest.mark.slow  # a sweep over all operators beside those of test_ops.py

FLOAT = onnx.TensorProto.FLOAT


def _absent(op: Op, sample: Sample) -> list[str]:
    bound = bind(op, sample)
    return [x.name for x in op.inputs if x.optional and not x.variadic and bound[x.name] is None]


def _calls() -> list[object]:
    """One parameter per operator and set of optional inputs that a sample leaves out."""
    found = []
    for op in all_ops().values():
        if not op.outputs:  # no node
            continue
        seen = set()
        for i, sample in enumerate(samples(op, op.sample_dtypes[0])):
            types = [str(getattr(v, "dtype", "")) for v in bind(op, sample).values()]
            key = (*_absent(op, sample), *types)
            if _absent(op, sample) and key not in seen:
                seen.add(key)
                found.append(pytest.param(op, i, id=f"{op.name}-{sample.id or i}"))
    return found


calls = pytest.mark.parametrize(("op", "i"), _calls())


def _with_empties(
    op: Op, sample: Sample, numbers: Mapping[str, int], *, as_nodes: bool
) -> onnx.ModelProto:
    """Return the sample's bare node with an empty constant of the given type for each name.

    What the operator tells of its results' types, the model does not.
    """
    model = make_model(op, sample, body=False)
    graph, node = model.graph, model.graph.node[0]
    node.input.extend([""] * (len(op.inputs) - len(node.input)))
    for i, x in enumerate(op.inputs):
        if x.name not in numbers:
            continue
        node.input[i] = f"empty_{x.name}"
        tensor = onnx.helper.make_tensor(node.input[i], numbers[x.name], [0], [])
        if as_nodes:
            graph.node.insert(
                0, onnx.helper.make_node("Constant", [], [node.input[i]], value=tensor)
            )
        else:
            graph.initializer.append(tensor)
    while not node.input[-1]:
        node.input.pop()
    for output, info in zip(op.outputs, graph.output, strict=False):
        if all(output.name in typing for typing in op.typings) and op.typings:
            info.ClearField("type")
    return model


def _own_types(op: Op, names: Sequence[str]) -> dict[str, int]:
    return {x.name: dt.NUMBERS[x.dtypes[0]] for x in op.inputs if x.name in names}


@calls
def test_a_bare_node_runs(op: Op, i: int) -> None:
    sample = samples(op, op.sample_dtypes[0])[i]
    want, absent = reference(op, sample), _absent(op, sample)
    for numbers, as_nodes in (
        (_own_types(op, absent), True),
        (dict.fromkeys(absent, FLOAT), False),
    ):
        model = _with_empties(op, sample, numbers, as_nodes=as_nodes)
        check_close(op, op.sample_dtypes[0], run_model(model, NPU, op, sample), want)


@calls
def test_a_body_is_that_of_the_node_without_them(op: Op, i: int) -> None:
    sample = samples(op, op.sample_dtypes[0])[i]
    want, absent = reference(op, sample), _absent(op, sample)
    model = _with_empties(op, sample, dict.fromkeys(absent, FLOAT), as_nodes=i % 2 == 0)
    for info, result in zip(model.graph.output, want, strict=True):
        dtype = torch.float32 if result.dtype == torch.float64 else result.dtype
        info.CopyFrom(
            onnx.helper.make_tensor_value_info(
                info.name, dt.NUMBERS[dt.from_torch(dtype)], [None] * result.dim()
            )
        )
    attach_function_bodies(model)
    check_close(op, op.sample_dtypes[0], run_model(model, NPU, op, sample), want)
    if model.functions:
        got = run_model(model, CPU, op, sample)
        check_close(op, op.sample_dtypes[0], got, want, reduces_empty=False)


@calls
def test_shape_inference_takes_them_for_absent(op: Op, i: int) -> None:
    register_schemas()
    sample = samples(op, op.sample_dtypes[0])[i]
    bound = bind(op, sample)
    names = _own_types(op, _absent(op, sample))
    types = []
    for numbers in ({}, names):
        for as_nodes in (True, False):
            model = _with_empties(op, sample, numbers, as_nodes=as_nodes)
            for info in model.graph.input:
                value = bound[info.name.removeprefix("in_")] if info.name[3:] in bound else None
                if isinstance(value, torch.Tensor):
                    dims = info.type.tensor_type.shape.dim
                    for dim, size in zip(dims, value.shape, strict=True):
                        dim.dim_value = size
            for info in model.graph.output:
                info.ClearField("type")
            inferred = onnx.shape_inference.infer_shapes(model)
            types.append([info.type.SerializeToString() for info in inferred.graph.output])
    assert types[0] == types[1] == types[2] == types[3]


def test_a_value_between_nodes_gets_the_type_without_them() -> None:
    """Nothing but the node tells the type of what the next one reads."""
    op = all_ops()["npu_fused_infer_attention_score"]
    sample = next(s for s in samples(op, "float16") if s.id == "bsh")
    model = _with_empties(op, sample, {"quant_scale2": FLOAT}, as_nodes=False)
    graph = model.graph
    graph.node[0].output[0] = "between"
    graph.node.append(onnx.helper.make_node("Neg", ["between"], ["negative"]))
    info = onnx.helper.make_tensor_value_info("negative", onnx.TensorProto.FLOAT16, [None] * 3)
    graph.output[0].CopyFrom(info)
    options = ort.SessionOptions()
    for _ in range(2):  # the second time the provider's schemas are there already
        made = ort.InferenceSession(model.SerializeToString(), options, providers=[NPU])
        got = run_session(made, NPU, op, sample)
        check_close(op, "float16", [-got[0], got[1]], reference(op, sample))


def test_a_file_with_weights_beside_it(tmp_path: Path) -> None:
    op = all_ops()["npu_fused_infer_attention_score"]
    sample = next(s for s in samples(op, "float32") if s.id == "bsh")
    model = _with_empties(op, sample, {"quant_scale2": FLOAT}, as_nodes=True)
    key = bind(op, sample)["key"]
    model.graph.initializer.append(onnx.numpy_helper.from_array(key.numpy(), "in_key"))
    inputs = [value for value in model.graph.input if value.name != "in_key"]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    path = tmp_path / "folder" / "model.onnx"
    path.parent.mkdir()
    onnx.save(model, path, save_as_external_data=True, size_threshold=0, location="weights.bin")
    made = ort.InferenceSession(path, providers=[NPU])
    bound = bind(op, sample)
    feeds = {f"in_{name}": bound[name].numpy() for name in ("query", "value")}
    want = op.call_reference(**bound)[0]
    torch.testing.assert_close(torch.from_numpy(made.run(None, feeds)[0]), want)


def test_an_input_that_may_be_fed_is_no_constant() -> None:
    """An initializer that is a graph input too is a default: it is there, whatever is fed."""
    op = all_ops()["npu_fused_infer_attention_score"]
    sample = next(s for s in samples(op, "float32") if s.id == "bsh")
    model = _with_empties(op, sample, {"quant_scale2": FLOAT}, as_nodes=False)
    model.graph.input.append(onnx.helper.make_tensor_value_info("empty_quant_scale2", FLOAT, ["n"]))
    types = [o.type for o in session(model, NPU).get_outputs()]
    assert types[0] == "tensor(int8)"
