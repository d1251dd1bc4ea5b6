"""The ways to run one sample call of an operator, each from the definition alone."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import onnx
import onnxruntime as ort
import onnxruntime_npu
import torch
from onnxruntime_npu.errors import ArgumentError
from onnxruntime_npu.opdef import Maker, Op, Sample, attach_function_bodies
from onnxruntime_npu.opdef import dtypes as dt
from onnxruntime_npu.opdef.definition_base import Definition
from onnxruntime_npu.opdef.node_parts import Attribute
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv, free_unbacked_symbols

NPU = "NPUExecutionProvider"
CPU = "CPUExecutionProvider"


@cache
def samples(op: Definition, dtype: str) -> list[Sample]:
    """Return the sample calls, cached: no caller may write to their tensors."""
    assert op.sample_function is not None
    return list(op.sample_function(Maker(dtype)))


@cache
def _names_of_samples(op: Definition, dtype: str) -> list[str | int]:
    return [sample.id or i for i, sample in enumerate(samples(op, dtype))]


def is_repeated(op: Op, dtype: str, i: int) -> bool:
    """Whether a sample of another dtype than the first shows what that one's does.

    The first two of each dtype do not.
    """
    first = op.sample_dtypes[0]
    names = _names_of_samples(op, dtype), _names_of_samples(op, first)
    return dtype != first and i > 1 and names[0][i] in names[1]


def bind(op: Definition, sample: Sample) -> dict[str, Any]:
    return op.bind(sample.args, sample.kwargs)


def reference(op: Op, sample: Sample) -> list[torch.Tensor]:
    """Run the reference, in float64 if a float32 call permits it: the exact answer."""
    bound = bind(op, sample)
    plain = _flat(op.call_reference(**_clone(bound)))
    floats = {t.dtype for v in bound.values() for t in _tensors(v) if t.dtype.is_floating_point}
    if floats != {torch.float32}:
        return plain
    try:
        wide = {
            name: _map(lambda t: t.double() if t.is_floating_point() else t, v)
            for name, v in bound.items()
        }
        exact = _flat(op.call_reference(**wide))
    except (ArgumentError, RuntimeError):  # a reference need not support float64
        return plain
    return [
        e if p.dtype.is_floating_point and e.dtype == torch.float64 else p
        for e, p in zip(exact, plain, strict=True)
    ]


def given_inputs(op: Op, sample: Sample) -> tuple[str, ...]:
    """Return the names of the inputs that a sample's node has."""
    return tuple(x.name for x, value in op.iterate_inputs(bind(op, sample)) if value is not None)


def eager(op: Op, sample: Sample) -> list[torch.Tensor]:
    """Run the kernel through onnxruntime_npu's function; written arguments count as results."""
    bound = _clone(bind(op, sample))
    results = _flat(_call(getattr(onnxruntime_npu, op.name), op, bound))
    written = [bound[o.mutates] for o in op.outputs if o.mutates]
    return results + [w for w in written if not any(w is r for r in results)]


def eager_npu(op: Op, sample: Sample) -> list[torch.Tensor]:
    """Run the kernel on npu tensors; the results stay on the device until they are compared."""
    bound = _to_npu(_clone(bind(op, sample)))
    results = _flat(_call(getattr(onnxruntime_npu, op.name), op, bound))
    assert all(t.device.type == "npu" for t in results)
    written = [bound[o.mutates] for o in op.outputs if o.mutates]
    results += [w for w in written if not any(w is r for r in results)]
    return [t.cpu() for t in results]


def _to_npu(bound: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _map(lambda t: t.npu(), value) for name, value in bound.items()}


def in_place(op: Op, sample: Sample) -> torch.Tensor:
    """Run the in-place variant and return the written arguments."""
    assert op.inplace is not None
    bound = _clone(bind(op, sample))
    name = next(a.name for a in op.inplace.arguments if a.type.mutated)
    result = _call(getattr(onnxruntime_npu, op.inplace.name), op, bound)
    assert result is bound[name]
    return bound[name]


def session(model: onnx.ModelProto, provider: str) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    return ort.InferenceSession(model.SerializeToString(), options, providers=[provider])


def run_model(model: onnx.ModelProto, provider: str, op: Op, sample: Sample) -> list[torch.Tensor]:
    """Run a one-node model; on the NPU the node must run there."""
    return run_session(session(model, provider), provider, op, sample)


def run_session(
    made: ort.InferenceSession, provider: str, op: Op, sample: Sample
) -> list[torch.Tensor]:
    if provider == NPU:
        assert_on_npu(made)
    feeds = {
        name: to_ortvalue(tensor)
        for name, tensor in zip(
            (i.name for i in made.get_inputs()), node_inputs(op, bind(op, sample)), strict=True
        )
    }
    outputs = made.run_with_ort_values(None, feeds)
    return [to_torch(o) for o in outputs]


def assert_on_npu(made: ort.InferenceSession) -> None:
    rows = [r for r in onnxruntime_npu.assignment(made) if r["domain"] == "npu"]
    assert rows, "the npu node was inlined: the provider did not take it"
    assert all(r["provider"] == NPU for r in rows), rows


def to_ortvalue(tensor: torch.Tensor) -> ort.OrtValue:
    tensor = tensor.contiguous()
    if tensor.dtype == torch.bfloat16:
        bits = tensor.view(torch.uint16).numpy()
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, onnx.TensorProto.BFLOAT16)
    return ort.OrtValue.ortvalue_from_numpy(tensor.numpy())


def to_torch(value: ort.OrtValue) -> torch.Tensor:
    if value.element_type() == onnx.TensorProto.BFLOAT16:
        # NumPy has no bfloat16: read the bits in place.
        count = math.prod(value.shape())
        bits = (ctypes.c_uint16 * count).from_address(value.data_ptr()) if count else []
        return (
            torch.tensor(list(bits), dtype=torch.uint16).view(torch.bfloat16).reshape(value.shape())
        )
    return torch.from_numpy(value.numpy().copy())


def node_inputs(op: Op, bound: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return the tensors that a node of this call has, without absent ones."""
    tensors: list[torch.Tensor] = []
    for node_input, value in op.iterate_inputs(bound):
        if value is None:
            continue
        if node_input.is_list_of_ints:
            tensors.append(torch.tensor(list(value), dtype=torch.int64))
        else:
            tensors += _tensors(value)
    return tensors


def has_default(attribute: Attribute, bound: Mapping[str, Any]) -> bool:
    """Whether a node of a call need not have an attribute that it could have."""
    value = attribute.to_onnx(bound[attribute.argument.name])
    return (
        not attribute.required
        and value is not None
        and value == attribute.to_onnx(attribute.default)
    )


def make_model(
    op: Op, sample: Sample, *, body: bool, op_type: str | None = None, defaults: bool = True
) -> onnx.ModelProto:
    """Return a model of one node. Shapes are dynamic, so that only the kernel checks them.

    Without ``defaults`` the node has no attribute whose value is its default.
    """
    bound = bind(op, sample)
    names: list[str] = []
    infos: list[onnx.ValueInfoProto] = []
    for node_input, value in op.iterate_inputs(bound):
        if node_input.is_list_of_ints and value is not None:
            value = torch.tensor(list(value), dtype=torch.int64)
        values = value if node_input.variadic else [value]
        for i, tensor in enumerate(values or []):
            if tensor is None:
                names.append("")
                continue
            name = f"{node_input.name}_{i}" if node_input.variadic else node_input.name
            names.append(f"in_{name}")
            dims = [f"d_{name}_{axis}" for axis in range(tensor.dim())]
            number = dt.NUMBERS[dt.from_torch(tensor.dtype)]
            infos.append(onnx.helper.make_tensor_value_info(names[-1], number, dims))
    while names and not names[-1]:
        names.pop()
    try:
        results = _flat(op.call_reference(**bound))
    except Exception:  # a call that must fail: result types are unknown here
        output_infos = [onnx.ValueInfoProto(name=f"out_{i}") for i in range(len(op.outputs))]
    else:
        output_infos = [
            onnx.helper.make_tensor_value_info(
                f"out_{i}", dt.NUMBERS[dt.from_torch(r.dtype)], [None] * r.dim()
            )
            for i, r in enumerate(results)
        ]
    node = onnx.helper.make_node(
        op_type or op.onnx_type,
        names,
        [o.name for o in output_infos],
        name="node",
        domain="npu",
    )
    for attribute in op.attributes:
        value = attribute.to_onnx(bound[attribute.argument.name])
        if not defaults and has_default(attribute, bound):
            continue
        if value is not None:
            kind = getattr(onnx.AttributeProto, attribute.kind.upper())
            made = onnx.helper.make_attribute(attribute.name, value, attr_type=kind)
            node.attribute.append(made)
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "g", infos, output_infos),
        opset_imports=[onnx.helper.make_opsetid("", 20), onnx.helper.make_opsetid("npu", 1)],
        ir_version=10,
    )
    if body:
        attach_function_bodies(model)
    return model


def exported(op: Op, calls: Sequence[Sample]) -> tuple[onnx.ModelProto, list[list[torch.Tensor]]]:
    """Export one model that makes all the calls; return it with its inputs."""
    from onnxruntime_npu.opdef import translation_table

    bounds = [bind(op, sample) for sample in calls]
    names = [[n for n, v in b.items() if _tensors(v)] for b in bounds]
    given = [b[n] for b, ns in zip(bounds, names, strict=True) for n in ns]
    # Copies: torch.export does not accept mutated arguments that share memory.
    args = tuple(
        _map(lambda t: t.clone(memory_format=torch.contiguous_format), value) for value in given
    )
    function = getattr(torch.ops.npu, op.name)

    class Calls(torch.nn.Module):
        def forward(self, *tensors: Any) -> tuple[torch.Tensor, ...]:
            rest = iter(tensors)
            results: list[torch.Tensor] = []
            for bound, given in zip(bounds, names, strict=True):
                values = {**bound, **{name: next(rest) for name in given}}
                results += _flat(_call(function, op, values))
                # What is written and not a result is checked, too.
                written = op.outputs[len(op.schema.returns) :]
                results += [values[o.mutates] for o in written if o.mutates]
            return tuple(results)

    program = torch.onnx.export(
        Calls().eval(),
        args,
        dynamo=True,
        opset_version=20,
        custom_translation_table=translation_table(),
        verbose=False,
    )
    attach_function_bodies(program.model)
    return program.model_proto, [_tensors(a) for a in args]


def check_close(
    op: Op,
    dtype: str,
    got: Sequence[torch.Tensor],
    want: Sequence[Any],
    *,
    known: bool = False,
    reduces_empty: bool = True,
) -> None:
    """Compare with the reference, or if ``known`` with values printed to a few digits.

    ``reduces_empty`` is False for onnxruntime's CPU provider, whose reductions do not change the
    shape of an empty tensor.
    """
    assert len(got) == len(want)
    for output, g, w in zip(_expanded(op, len(got)), got, want, strict=True):
        if w is None:
            continue
        if known:
            w = torch.tensor(w)
        else:
            if g.numel() == w.numel() == 0 and not reduces_empty:
                continue
            assert list(g.shape) == list(w.shape), f"{output}: shape"
            if w.dtype != torch.float64:
                assert g.dtype == w.dtype, f"{output}: dtype"
        own = dt.from_torch(g.dtype)
        # A float result of a coarser type than the call's has that type's rounding.
        coarser = own in ("float16", "bfloat16") and dtype != "bfloat16"
        name = own if coarser or not g.dtype.is_floating_point else dtype
        tolerance = op.tolerance_for(name)
        rtol, atol = tolerance.rtol, tolerance.atol
        if known:
            rtol, atol = max(rtol, 2e-5), max(atol, 2e-5)  # known values have six digits
        torch.testing.assert_close(
            g.double() if g.is_floating_point() else g,
            w.double() if g.is_floating_point() else w.to(g.dtype),
            rtol=rtol,
            atol=atol,
            equal_nan=True,
            msg=lambda text, output=output: f"{op.name}.{output}: {text}",
        )


def fake_call(op: Op, sample: Sample) -> list[torch.Tensor]:
    bound = bind(op, sample)
    # The shapes' environment is for results whose sizes depend on values.
    with FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True) as mode:
        values = {n: _map(mode.from_tensor, v) for n, v in bound.items()}
        return _flat(_call(getattr(torch.ops.npu, op.name), op, values))


def told_sizes(fake: torch.Tensor) -> list[int | None]:
    """Return the sizes of a traced result, None for those that depend on values."""
    return [None if free_unbacked_symbols(n) else int(n) for n in fake.shape]


def check_fake(fakes: Sequence[torch.Tensor], real: Sequence[torch.Tensor], what: str = "") -> None:
    """Compare what a trace says of the results with them, as far as it can tell."""
    for fake, tensor in zip(fakes, real, strict=False):
        sizes = told_sizes(fake)
        assert len(sizes) == tensor.dim(), what
        assert all(n in (None, m) for n, m in zip(sizes, tensor.shape, strict=True)), what
        assert fake.dtype == tensor.dtype, what
        assert None in sizes or fake.stride() == tensor.stride(), what


def dispatcher_call(op: Op, sample: Sample) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the call as positional and keyword arguments."""
    bound = _clone(bind(op, sample))
    args = tuple(bound[a.name] for a in op.schema.arguments if not a.keyword_only)
    kwargs = {a.name: bound[a.name] for a in op.schema.arguments if a.keyword_only}
    return args, kwargs


def _call(function: Any, op: Op, bound: Mapping[str, Any]) -> Any:
    args = [bound[a.name] for a in op.schema.arguments if not a.keyword_only]
    kwargs = {a.name: bound[a.name] for a in op.schema.arguments if a.keyword_only}
    return function(*args, **kwargs)


def _expanded(op: Op, count: int) -> list[str]:
    names = [o.name for o in op.outputs]
    return names + [f"{names[-1]}.{i}" for i in range(1, count - len(names) + 1)]


def _flat(results: Any) -> list[torch.Tensor]:
    return _tensors(results)


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in _tensors(v)]
    return []


def _map(function: Any, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) for v in value):
        return [_map(function, v) for v in value]
    return value


def _clone(bound: Mapping[str, Any]) -> dict[str, Any]:
    # Strides are kept: a sample may deliberately be a transposed view.
    def copy(t: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(t.size(), t.stride(), dtype=t.dtype).copy_(t)

    return {name: _map(copy, value) for name, value in bound.items()}
