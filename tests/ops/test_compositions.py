"""Operators that consist of standard ones: every one × dtype × path, from the definitions alone.

Paths: the call on CPU and on npu tensors, the fake call, its gradient, and torch.export → ONNX,
where the provider runs the standard nodes. Known values are in the definitions; the other samples
compare the paths, on which torch's and this project's kernels compute independently.
"""

from __future__ import annotations

from typing import Any

import onnxruntime_npu
import pytest
import torch
from onnxruntime_npu import torch_device
from onnxruntime_npu.errors import ArgumentError
from onnxruntime_npu.opdef import Composition, Maker, Sample, all_compositions
from op_paths import NPU, _clone, _flat, _map, bind, samples, session, to_ortvalue, to_torch

ALL = list(all_compositions().values())
needs_device = pytest.mark.skipif(
    not torch_device.is_built(), reason="this build has no torch device"
)


def _samples(op: Composition, dtype: str) -> list[Sample]:
    return [] if op.sample_function is None else samples(op, dtype)


def _calls(ops: list[Composition], dtypes: slice = slice(None)) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("op", "dtype", "i"),
        [
            pytest.param(op, dtype, i, id=f"{op.name}-{dtype}-{sample.id or i}")
            for op in ops
            for dtype in op.sample_dtypes[dtypes]
            for i, sample in enumerate(_samples(op, dtype))
        ],
    )


def _overload(op: Composition) -> Any:
    return getattr(getattr(torch.ops.npu, op.name), op.schema.overload or "default")


def _call(op: Composition, bound: dict[str, Any]) -> list[torch.Tensor]:
    """Call it as a user does; what it writes counts as a result."""
    return _flat(getattr(onnxruntime_npu, op.name)(*bound.values()))


def _close(got: list[torch.Tensor], want: list[Any], dtype: str) -> None:
    assert len(got) == len(want)
    rtol = {"float16": 2e-3, "bfloat16": 1.6e-2}.get(dtype, 1e-5)  # two roundings of the result
    for g, w in zip(got, want, strict=True):
        w = torch.as_tensor(w)
        assert g.shape == w.shape
        torch.testing.assert_close(
            g.double(), w.double(), rtol=rtol, atol=rtol, equal_nan=True, check_device=False
        )


@pytest.mark.parametrize("op", ALL, ids=lambda op: op.name)
def test_definition_is_complete(op: Composition) -> None:
    made = _samples(op, op.sample_dtypes[0])
    assert op.doc and op.function_body and op.function_body.__doc__
    assert op.reference_function or any(s.expect for s in made) or not made


@_calls(ALL)
def test_cpu_and_known_values(op: Composition, dtype: str, i: int) -> None:
    sample = _samples(op, dtype)[i]
    bound = bind(op, sample)
    got = _call(op, _clone(bound))
    if sample.expect is not None:
        _close(got, sample.expect, dtype)
    if op.reference_function is not None:
        _close(got, _flat(op.reference_function(**_clone(bound))), dtype)


@needs_device
@_calls(ALL)
def test_npu(op: Composition, dtype: str, i: int) -> None:
    bound = bind(op, _samples(op, dtype)[i])
    want = _call(op, _clone(bound))
    torch_device.reset_fallback_counts()
    got = _call(op, {n: _map(lambda t: t.npu(), v) for n, v in _clone(bound).items()})
    assert all(t.device.type == "npu" for t in got)
    assert not torch_device.fallback_counts()
    assert [t.dtype for t in got] == [t.dtype for t in want]
    _close([t.cpu() for t in got], want, dtype)


@_calls(ALL, slice(1))
def test_fake(op: Composition, dtype: str, i: int) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    bound = bind(op, _samples(op, dtype)[i])
    want = _call(op, _clone(bound))
    with FakeTensorMode() as mode:
        got = _call(op, {n: _map(mode.from_tensor, v) for n, v in bound.items()})
    assert [(t.shape, t.dtype) for t in got] == [(t.shape, t.dtype) for t in want]


@_calls(ALL, slice(1))
def test_opcheck(op: Composition, dtype: str, i: int) -> None:
    bound = bind(op, _samples(op, dtype)[i])
    given = [a for a in op.schema.arguments if a.name in bound]
    args = tuple(bound[a.name] for a in given if not a.keyword_only)
    kwargs = {a.name: bound[a.name] for a in given if a.keyword_only}
    checks = ["test_schema", "test_autograd_registration", "test_faketensor"]
    if i == 0:  # compiles the call: a second each
        checks.append("test_aot_dispatch_dynamic")
    torch.library.opcheck(_overload(op), args, kwargs, test_utils=checks)


@_calls([op for op in ALL if op.out is not None], slice(1))
def test_out_writes_the_result(op: Composition, dtype: str, i: int) -> None:
    bound = bind(op, _samples(op, dtype)[i])
    want = _call(op, _clone(bound))[0]
    out = torch.full_like(want, 7)
    got = getattr(onnxruntime_npu, op.name).out(*bound.values(), out=out)
    assert got is out and torch.equal(out, want)
    with pytest.raises(ArgumentError, match=rf"\[{op.name}\] expected out 0 of"):
        getattr(onnxruntime_npu, op.name).out(*bound.values(), out=out.bool())


@_calls([op for op in ALL if op.differentiable], slice(1))
def test_gradcheck(op: Composition, dtype: str, i: int) -> None:
    sample = _samples(op, dtype)[i]
    bound = bind(op, sample)
    if sample.expect is not None:
        return  # values by hand have ties, where an extreme has no derivative
    leaves = {
        n: v.double().requires_grad_()
        for n, v in bound.items()
        if isinstance(v, torch.Tensor) and v.is_floating_point()
    }
    if not all(v.numel() for v in leaves.values()):
        return  # nothing to vary

    def function(*values: torch.Tensor) -> list[torch.Tensor]:
        given = {**bound, **dict(zip(leaves, values, strict=True))}
        return [t for t in _flat(op.function_body(**given)) if t.is_floating_point()]

    assert torch.autograd.gradcheck(function, tuple(leaves.values()), fast_mode=True)


@pytest.mark.parametrize("op", ALL, ids=lambda op: op.name)
def test_exported_model_has_standard_nodes(op: Composition) -> None:
    dtype = op.sample_dtypes[0]
    written = [a.name for a in op.schema.arguments if a.type.mutated]
    bounds = [bind(op, s) for s in _samples(op, dtype)]
    bounds = [b for b in bounds if all(t.numel() for v in b.values() for t in _flat(v))]
    if written or not bounds:
        return  # a graph has no arguments to write to
    names = [[n for n, v in b.items() if isinstance(v, torch.Tensor)] for b in bounds]
    given = [b[n].contiguous() for b, ns in zip(bounds, names, strict=True) for n in ns]
    given = [t.clone() for t in given]

    class Calls(torch.nn.Module):
        def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            rest = iter(tensors)
            results: list[torch.Tensor] = []
            for bound, ns in zip(bounds, names, strict=True):
                values = {**bound, **{n: next(rest) for n in ns}}
                results += _flat(_overload(op)(*values.values()))
            return tuple(results)

    program = torch.onnx.export(Calls().eval(), tuple(given), dynamo=True, verbose=False)
    model = program.model_proto
    assert {node.domain for node in model.graph.node} <= {"", "ai.onnx"}
    made = session(model, NPU)
    feeds = {x.name: to_ortvalue(t) for x, t in zip(made.get_inputs(), given, strict=False)}
    got = [to_torch(o) for o in made.run_with_ort_values(None, feeds)]
    want = [t for b in bounds for t in _call(op, _clone(b))]
    _close(got, want, dtype)


@pytest.mark.parametrize(
    ("op", "case"),
    [pytest.param(op, case, id=f"{op.name}-{case.id}") for op in ALL for case in op.error_cases],
)
def test_error(op: Composition, case: Any) -> None:
    bound = bind(op, case.make(Maker(op.sample_dtypes[0])))
    with pytest.raises(RuntimeError, match=case.match):
        _call(op, bound)
    with pytest.raises(RuntimeError, match=case.match), torch.device("meta"):
        _call(op, {n: _map(lambda t: t.to("meta"), v) for n, v in bound.items()})
