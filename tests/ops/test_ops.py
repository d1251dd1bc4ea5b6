"""Every operator × dtype × path, from the definitions alone: a new operator needs no test code.

Paths: the kernel called eagerly, the kernel in an InferenceSession, the portable function body on a
CPU-only session, the fake function, and the round trip torch.export → ONNX. All are held to the
reference, and the reference to independently known values.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import onnx
import pytest
import torch
from onnxruntime_npu import torch_device
from onnxruntime_npu.opdef import Maker, Op, Sample, all_ops
from onnxruntime_npu.opdef import dtypes as dt
from onnxruntime_npu.opdef.eager import check_dtypes
from onnxruntime_npu.opdef.inference import infer_outputs
from op_paths import (
    CPU,
    NPU,
    assert_on_npu,
    bind,
    check_close,
    check_fake,
    dispatcher_call,
    eager,
    eager_npu,
    exported,
    fake_call,
    given_inputs,
    has_default,
    in_place,
    is_repeated,
    make_model,
    reference,
    run_model,
    samples,
    session,
    to_ortvalue,
    to_torch,
    told_sizes,
)

OPS = list(all_ops().values())
# onnxruntime refuses a node without outputs.
GRAPH_OPS = [op for op in OPS if op.outputs]


def _calls(ops: list[Op], dtypes: slice = slice(None), *, repeats: bool = True) -> list[object]:
    """One parameter per operator, dtype and sample.

    Without ``repeats``, other dtypes have the first two of the samples that the first one has, too:
    --exhaustive runs the rest.
    """
    found = []
    for op in ops:
        for dtype in op.sample_dtypes[dtypes]:
            for i, sample in enumerate(samples(op, dtype)):
                repeated = not repeats and is_repeated(op, dtype, i)
                marks = [pytest.mark.exhaustive] if repeated else []
                name = f"{op.name}-{dtype}-{sample.id or i}"
                found.append(pytest.param(op, dtype, i, id=name, marks=marks))
    return found


calls = pytest.mark.parametrize(("op", "dtype", "i"), _calls(OPS))
first_dtype_calls = pytest.mark.parametrize(("op", "dtype", "i"), _calls(OPS, slice(1)))
# A node's inputs and attributes are read in the same way for each dtype, and its kernel is the one
# that test_eager calls in all of them.
graph_calls = pytest.mark.parametrize(("op", "dtype", "i"), _calls(GRAPH_OPS, repeats=False))


def _error_calls(ops: list[Op]) -> pytest.MarkDecorator:
    """One parameter per operator and refused call."""
    cases = [
        pytest.param(op, case, id=f"{op.name}-{case.id}") for op in ops for case in op.error_cases
    ]
    return pytest.mark.parametrize(("op", "case"), cases)


error_calls = _error_calls(OPS)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_definition_is_complete(op: Op) -> None:
    assert op.doc and op.reference_function and op.sample_function
    assert op.body_function or op.not_portable, "why has it no portable form?"
    assert any(t["domain"] == "npu" and t["type"] == op.onnx_type for t in _registered())
    for dtype in op.tolerances:
        assert dtype in dt.NUMBERS


def _registered() -> list[dict[str, object]]:
    from onnxruntime_npu import _C

    return _C.registered_ops()


@pytest.mark.parametrize(
    ("op", "dtype", "i"), [p for p in _calls(OPS) if samples(*p.values[:2])[p.values[2]].expect]
)
def test_reference_matches_known_values(op: Op, dtype: str, i: int) -> None:
    sample = samples(op, dtype)[i]
    check_close(op, dtype, reference(op, sample), sample.expect, known=True)


@calls
def test_eager(op: Op, dtype: str, i: int) -> None:
    sample = samples(op, dtype)[i]
    check_close(op, dtype, eager(op, sample), reference(op, sample))


@pytest.mark.skipif(not torch_device.is_built(), reason="this build has no torch device")
@calls
def test_eager_npu(op: Op, dtype: str, i: int) -> None:
    sample = samples(op, dtype)[i]
    check_close(op, dtype, eager_npu(op, sample), reference(op, sample))


@pytest.mark.parametrize(("op", "dtype", "i"), _calls([op for op in OPS if op.inplace]))
def test_in_place_twin(op: Op, dtype: str, i: int) -> None:
    sample = samples(op, dtype)[i]
    check_close(op, dtype, [in_place(op, sample)], reference(op, sample)[:1])


def _with_defaults() -> list[object]:
    """Parameters of each operator's first call in which an attribute has its default."""
    found = []
    for op in GRAPH_OPS:
        dtype = op.sample_dtypes[0]
        for i, sample in enumerate(samples(op, dtype)):
            bound = bind(op, sample)
            if any(has_default(each, bound) for each in op.attributes):
                found.append(pytest.param(op, dtype, i, id=op.name))
                break
    return found


@pytest.mark.parametrize(("op", "dtype", "i"), _with_defaults())
def test_provider_fills_in_defaults(op: Op, dtype: str, i: int) -> None:
    sample = samples(op, dtype)[i]
    model = make_model(op, sample, body=False, defaults=False)
    check_close(op, dtype, run_model(model, NPU, op, sample), reference(op, sample))


@graph_calls
def test_provider_and_function_body(op: Op, dtype: str, i: int) -> None:
    """One test, since most of its time makes the model that both run."""
    sample = samples(op, dtype)[i]
    model = make_model(op, sample, body=True)
    want = reference(op, sample)
    check_close(op, dtype, run_model(model, NPU, op, sample), want)
    if not model.functions:
        assert op.not_portable, "the body refuses a call that the definition does not name"
        return
    onnx.checker.check_model(model)
    check_close(op, dtype, run_model(model, CPU, op, sample), want, reduces_empty=False)


@pytest.mark.parametrize("op", GRAPH_OPS, ids=lambda op: op.name)
def test_node_without_body_infers_result_types(op: Op) -> None:
    """One model has a node for each call of other types, since loading a session takes a while."""
    whole, seen, want = onnx.ModelProto(), set(), {}
    for dtype in op.sample_dtypes:
        for sample in samples(op, dtype):
            model = make_model(op, sample, body=False)
            infos = [*model.graph.input, *model.graph.output]
            types = str([(i.name, i.type.tensor_type.elem_type) for i in infos])
            if types in seen:
                continue
            model = onnx.compose.add_prefix(model, f"{len(seen)}_{dtype}_{sample.id}_")
            seen.add(types)
            for info in model.graph.output:
                want[info.name] = info.type.tensor_type.elem_type
            for i, info in enumerate(model.graph.output):
                output = op.outputs[min(i, len(op.outputs) - 1)]
                told = all(output.name in typing for typing in op.typings)
                if told or len(output.dtypes) == 1:  # else the model must declare it
                    info.ClearField("type")
            whole.MergeFrom(model)
    del whole.opset_import[2:]  # the same of each model
    got = {o.name: _element_type(o.type) for o in session(whole, NPU).get_outputs()}
    assert got == want


def _element_type(name: str) -> int:
    element = name.removeprefix("tensor(").removesuffix(")")
    return dt.NUMBERS[{"float": "float32", "double": "float64"}.get(element, element)]


@first_dtype_calls
def test_type_aliases(op: Op, dtype: str, i: int) -> None:
    sample = samples(op, dtype)[i]
    for alias in op.type_aliases:
        meaning = op.taking(alias.order) if alias.order else op
        model = make_model(meaning, sample, body=True, op_type=alias.type)
        check_close(op, dtype, run_model(model, NPU, meaning, sample), reference(op, sample))
        if model.functions:
            got = run_model(model, CPU, meaning, sample)
            check_close(op, dtype, got, reference(op, sample), reduces_empty=False)


def _exports() -> list[object]:
    """One parameter per operator and dtype: the indices of the calls that make one model.

    Calls that give the same inputs are translated in the same way: one of them is there.
    --exhaustive exports all, and one in a second dtype.
    """
    found = []
    for op in GRAPH_OPS:
        calls = samples(op, op.sample_dtypes[0])
        chosen = sorted({given_inputs(op, sample): i for i, sample in enumerate(calls)}.values())
        found.append(pytest.param(op, op.sample_dtypes[0], chosen, id=f"{op.name}-first_dtype"))
        more = [
            (op.sample_dtypes[0], list(range(len(calls))), "all_calls"),
            *((dtype, [0], "second_dtype") for dtype in op.sample_dtypes[1:2]),
        ]
        found += [
            pytest.param(op, *rest, id=f"{op.name}-{name}", marks=pytest.mark.exhaustive)
            for *rest, name in more
        ]
    return found


@pytest.mark.parametrize(("op", "dtype", "chosen"), _exports())
def test_export_round_trip(op: Op, dtype: str, chosen: list[int]) -> None:
    calls = [samples(op, dtype)[i] for i in chosen]
    model, args = exported(op, calls)
    nodes = [n for n in model.graph.node if n.domain == "npu"]
    assert [n.op_type for n in nodes] == [op.onnx_type] * len(calls)
    made = session(model, NPU)
    assert_on_npu(made)
    tensors = [t for group in args for t in group]
    feeds = dict(zip((x.name for x in made.get_inputs()), map(to_ortvalue, tensors), strict=True))
    got = [to_torch(o) for o in made.run_with_ort_values(None, feeds)]
    for sample in calls:
        want = reference(op, sample)
        check_close(op, dtype, got[: len(want)], want)
        got = got[len(want) :]


@cache
def _sizes_depend_on_values(op: Op, dtype: str) -> bool:
    """Whether a trace of some sample cannot tell a size of a result."""
    return any(None in told_sizes(f) for s in samples(op, dtype) for f in fake_call(op, s))


@first_dtype_calls
def test_fake_results_have_sizes_and_strides_of_the_kernels(op: Op, dtype: str, i: int) -> None:
    sample = samples(op, dtype)[i]
    check_fake(fake_call(op, sample), eager(op, sample))


@first_dtype_calls
def test_shape_inference_agrees_with_the_kernel(op: Op, dtype: str, i: int) -> None:
    sample = samples(op, dtype)[i]
    bound = bind(op, sample)
    inputs = []
    for node_input, value in op.iterate_inputs(bound):
        if value is None:
            inputs.append(None)
        elif node_input.is_list_of_ints:
            inputs.append(("int64", [len(value)]))
        else:
            for t in value if node_input.variadic else [value]:
                inputs.append((dt.from_torch(t.dtype), list(t.shape)))
    inferred = infer_outputs(op, inputs, op.attribute_values(bound))
    if inferred is None:
        lists = [x for x, v in op.iterate_inputs(bound) if x.is_list_of_ints and v is not None]
        assert lists or any(x.cpu for x in op.inputs) or _sizes_depend_on_values(op, dtype), (
            "only values may keep shapes from being told"
        )
        return
    assert inferred == [(dt.from_torch(o.dtype), list(o.shape)) for o in reference(op, sample)] or (
        inferred == [(dt.from_torch(o.dtype), list(o.shape)) for o in eager(op, sample)]
    )


def _calls_of_other_inputs() -> list[object]:
    """One parameter per operator and sample of the first dtype.

    --exhaustive runs those that give the same inputs as an earlier sample of the operator.
    """
    found = []
    for param in _calls(OPS, slice(1)):
        op, dtype, i = param.values
        earlier = {given_inputs(op, sample) for sample in samples(op, dtype)[:i]}
        repeated = given_inputs(op, samples(op, dtype)[i]) in earlier
        marks = [pytest.mark.exhaustive] if repeated else []
        found.append(pytest.param(*param.values, id=param.id, marks=marks))
    return found


@pytest.mark.parametrize(("op", "dtype", "i"), _calls_of_other_inputs())
def test_opcheck(op: Op, dtype: str, i: int) -> None:
    args, kwargs = dispatcher_call(op, samples(op, dtype)[i])
    checks = ["test_schema", "test_autograd_registration", "test_faketensor"]
    # Compiles the call, half a second each; test_gradients.py does with the gradients of floats.
    if i == 0 and not (op.backward_formula and dt.is_floating(op.outputs[0].dtypes[0])):
        checks.append("test_aot_dispatch_dynamic")
    for name in [op.name, *([op.inplace.name] if op.inplace else [])]:
        overload = getattr(torch.ops.npu, name).default
        torch.library.opcheck(overload, args, kwargs, test_utils=checks)


@error_calls
def test_error_reference(op: Op, case) -> None:
    sample = case.make(Maker(op.sample_dtypes[0]))
    bound = bind(op, sample)
    with pytest.raises(RuntimeError, match=case.match):
        check_dtypes(op, bound)
        op.call_reference(**bound)


@error_calls
def test_error_eager(op: Op, case) -> None:
    sample = case.make(Maker(op.sample_dtypes[0]))
    with pytest.raises(RuntimeError, match=case.match):
        eager(op, sample)


@error_calls
def test_error_eager_npu(op: Op, case) -> None:
    sample = case.make(Maker(op.sample_dtypes[0]))
    with pytest.raises(RuntimeError, match=case.match) as there:
        eager_npu(op, sample)
    with pytest.raises(RuntimeError) as here:
        eager(op, sample)
    assert str(there.value) == str(here.value)
    # A kernel that fails while running is reported by torch's copy from the device.
    assert case.needs_values or there.type is here.type


@error_calls
def test_error_fake(op: Op, case) -> None:
    if case.needs_values:
        return
    sample = case.make(Maker(op.sample_dtypes[0]))
    with pytest.raises(RuntimeError, match=case.match):
        fake_call(op, sample)


@_error_calls(GRAPH_OPS)
def test_error_provider(op: Op, case) -> None:
    sample = case.make(Maker(op.sample_dtypes[0]))
    with pytest.raises(Exception) as caught:
        run_model(make_model(op, sample, body=False), NPU, op, sample)
    if _dtypes_defined(op, sample):
        assert re.search(case.match, str(caught.value)), str(caught.value)
    else:  # such a node is not claimed, and no other provider has a kernel for it
        assert op.onnx_type in str(caught.value)


def _dtypes_defined(op: Op, sample: Sample) -> bool:
    for node_input, value in op.iterate_inputs(bind(op, sample)):
        for tensor in value if node_input.variadic else [value]:
            given = tensor is not None and not node_input.is_list_of_ints
            if given and dt.from_torch(tensor.dtype) not in node_input.dtypes:
                return False
    return True


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
@pytest.mark.parametrize("run", [eager, eager_npu, fake_call])
def test_wrong_dtype_is_reported(op: Op, run) -> None:
    tested = set()
    for sample in samples(op, op.sample_dtypes[0]):
        for node_input, value in op.iterate_inputs(bind(op, sample)):
            if node_input.is_list_of_ints or value is None or node_input.name in tested:
                continue
            tested.add(node_input.name)
            wrong = [v.to(torch.complex64) for v in _listed(value)]
            bound = {
                **bind(op, sample),
                node_input.name: wrong if node_input.variadic else wrong[0],
            }
            types = ", ".join(node_input.dtypes)
            expected = rf"\[{op.name}\] expected {node_input.name} of dtype {types}, got complex64"
            with pytest.raises(RuntimeError, match=expected):
                run(op, Sample.of(bound))
    assert tested


def _listed(value: Any) -> list[torch.Tensor]:
    return value if isinstance(value, list) else [value]


@pytest.mark.parametrize("op", GRAPH_OPS, ids=lambda op: op.name)
def test_wrong_dtype_in_a_node_without_body_is_reported(op: Op) -> None:
    sample = samples(op, op.sample_dtypes[0])[0]
    for node_input, value in op.iterate_inputs(bind(op, sample)):
        if node_input.is_list_of_ints or value is None:
            continue
        wrong = [v.to(torch.int16) for v in _listed(value)]
        bound = {**bind(op, sample), node_input.name: wrong if node_input.variadic else wrong[0]}
        if "int16" not in node_input.dtypes:
            model = make_model(op, Sample.of(bound), body=False)
            for info in model.graph.output:
                info.ClearField("type")
            expected = rf"{op.onnx_type}.* input {node_input.name}: expected .*, got int16"
            with pytest.raises(Exception, match=expected):
                session(model, NPU)
