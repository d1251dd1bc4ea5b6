"""What torch has of an operator beside its kernel: overloads, twins, partners.

torch_npu_schemas.txt holds a line for every operator that torch_npu 2.13.0 registers, as torch
prints its schema.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import onnxruntime_npu
import pytest
import torch
from onnxruntime_npu.errors import ArgumentError
from onnxruntime_npu.opdef import DefinitionError, Op, all_compositions, all_ops, npu_op
from op_paths import _call, _flat, bind, eager, samples

LINES = Path(__file__).with_name("torch_npu_schemas.txt").read_text().splitlines()
SCHEMAS = [torch._C.parse_schema(f"npu::{line}") for line in LINES]


NAMES = {*all_ops(), *all_compositions()}


def _name(schema: Any) -> str:
    return schema.name.removeprefix("npu::")


def _operator(name: str) -> str:
    """Return the operator that a name of torch_npu belongs to: twin, or partner of an overload."""
    partner = re.fullmatch(r"_(npu_\w+)_(?:get_max_workspace|infer_output)", name)
    if partner:
        return partner[1]
    # What a function of lists of tensors calls has its name behind an underscore.
    if name in NAMES:
        return name
    return f"_{name}" if f"_{name}" in NAMES else name.removesuffix("_")


OURS = [schema for schema in SCHEMAS if _operator(_name(schema)) in NAMES]


def _arguments(schema: Any) -> list[tuple[Any, ...]]:
    # What is written to is no part of it: torch_npu does not say so of every argument.
    return [(a.name, str(a.real_type), a.default_value, a.kwarg_only) for a in schema.arguments]


def _title(schema: Any) -> str:
    return f"{_name(schema)}.{schema.overload_name or 'default'}"


@pytest.mark.parametrize("schema", OURS, ids=_title)
def test_every_overload_of_torch_npu_is_there(schema: Any) -> None:
    packet = getattr(torch.ops.npu, _name(schema))
    overload = schema.overload_name or "default"
    assert overload in packet.overloads()
    ours = getattr(packet, overload)._schema
    assert _arguments(ours) == _arguments(schema)
    assert len(ours.returns) == len(schema.returns)
    function = getattr(onnxruntime_npu, _name(schema))
    assert getattr(function, overload) is getattr(packet, overload)


def test_the_schemas_cover_every_operator() -> None:
    names = {_name(schema) for schema in OURS}
    assert not {n for n in NAMES if n not in names and n.removeprefix("_") not in names}


WRITING = [op for op in all_ops().values() if op.out is not None]
writing = pytest.mark.parametrize("op", WRITING, ids=lambda op: op.name)


def _out_call(op: Op, bound: dict[str, Any], out: list[torch.Tensor], **more: Any) -> Any:
    overload = getattr(getattr(onnxruntime_npu, op.name), op.out.overload)
    written = [a for a in op.out.arguments if a.type.mutated]
    if written[0].type.is_list:
        given: dict[str, Any] = {written[0].name: out}
    else:
        given = dict(zip((a.name for a in written), out, strict=True))
    return _call(lambda *a, **k: overload(*a, **k, **given, **more), op, bound)


@pytest.mark.parametrize("device", ["cpu", "npu"])
@writing
def test_out_writes_the_results(op: Op, device: str) -> None:
    for sample in samples(op, op.sample_dtypes[0]):
        bound = {
            n: v.to(device) if isinstance(v, torch.Tensor) else v
            for n, v in bind(op, sample).items()
        }
        want = _flat(_call(getattr(onnxruntime_npu, op.name), op, bound))
        out = [torch.full_like(w, 7) for w in want]
        addresses = [t.data_ptr() for t in out]
        got = _flat(_out_call(op, bound, out))
        for result, target, address, w in zip(got, out, addresses, want, strict=True):
            assert result is target and target.data_ptr() == address
            assert torch.equal(target.cpu(), w.cpu())


@writing
def test_out_grows_what_is_empty_casts_and_refuses_what_is_wrong(op: Op) -> None:
    bound = bind(op, samples(op, op.sample_dtypes[0])[0])
    want = eager(op, samples(op, op.sample_dtypes[0])[0])
    out = [w.new_empty(0) for w in want]
    _out_call(op, bound, out)
    assert all(torch.equal(o, w) for o, w in zip(out, want, strict=True))
    wide = [torch.empty_like(w, dtype=torch.complex64) for w in want]
    _out_call(op, bound, wide)
    assert all(torch.equal(o, w.to(o.dtype)) for o, w in zip(wide, want, strict=True))
    refusals = {
        rf"\[{op.name}\] expected out 0 of .*, got torch.bool": [out[0].bool(), *out[1:]],
        rf"\[{op.name}\] expected out 0 of shape .*, got \[3\]": [out[0].new_empty(3), *out[1:]],
    }
    if any(a.type.is_list for a in op.out.arguments if a.type.mutated):
        counts = f"{len(want)} tensors, got {len(want) - 1}"
        refusals[rf"\[{op.name}\] expected out with {counts}"] = out[1:]
    for message, wrong in refusals.items():
        with pytest.raises(ArgumentError, match=message):
            _out_call(op, bound, wrong)


@writing
def test_out_is_traced_as_what_it_does(op: Op) -> None:
    bound = bind(op, samples(op, op.sample_dtypes[0])[0])
    want = eager(op, samples(op, op.sample_dtypes[0])[0])
    names = [n for n, v in bound.items() if isinstance(v, torch.Tensor)]

    def run(tensors: list[torch.Tensor], out: list[torch.Tensor]) -> None:
        _out_call(op, {**bound, **dict(zip(names, tensors, strict=True))}, out)

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    out = [torch.full_like(w, 7) for w in want]
    compiled([bound[n] for n in names], out)
    assert all(torch.equal(o, w) for o, w in zip(out, want, strict=True))


def test_an_overload_takes_the_operators_arguments() -> None:
    def define(out: str) -> Op:
        dtypes = {"self": ["float32"], "y": ["float32"]}
        schema = "npu_o(Tensor self, float a=1.0) -> Tensor"
        return npu_op(schema, onnx="NPUO", dtypes=dtypes, out=out)

    assert define("npu_o.out(Tensor self, float a=1.0, *, Tensor(a!) out) -> Tensor(a!)").out
    for wrong in (
        "npu_p.out(Tensor self, float a=1.0, *, Tensor(a!) out) -> Tensor(a!)",
        "npu_o.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        "npu_o.out(Tensor self, float a=1.0) -> Tensor",
        "npu_o.out(Tensor self, float a=1.0, int b=2, *, Tensor(a!) out) -> Tensor(a!)",
    ):
        with pytest.raises(DefinitionError, match="expected the arguments of npu_o"):
            define(wrong)


class TestInferenceAttentionPartners:
    """The two functions that torch_npu's graph mode calls before the overload ``out``."""

    op = all_ops()["npu_fused_infer_attention_score"]

    def test_infer_output_gives_what_the_operator_returns(self) -> None:
        names = ("input_layout", "quant_scale2", "block_table", "num_heads", "num_key_value_heads")
        names += ("softmax_lse_flag", "query_rope")
        for dtype in self.op.sample_dtypes:
            for sample in samples(self.op, dtype):
                bound = bind(self.op, sample)
                given = {name: bound[name] for name in names}
                got = onnxruntime_npu._npu_fused_infer_attention_score_infer_output(
                    bound["query"], bound["value"], **given
                )
                want = self.op.call_reference(**bound)
                assert [(t.shape, t.dtype) for t in got] == [(t.shape, t.dtype) for t in want]

    def test_a_workspace_is_asked_for_and_handed_over(self) -> None:
        sample = samples(self.op, "float32")[0]
        bound = bind(self.op, sample)
        ask = onnxruntime_npu._npu_fused_infer_attention_score_get_max_workspace
        workspace = _call(ask, self.op, bound)
        assert workspace.dtype == torch.uint8 and workspace.dim() == 1
        want = eager(self.op, sample)
        out = [torch.full_like(w, 7) for w in want]
        _out_call(self.op, bound, out, workspace=workspace)
        assert all(torch.equal(o, w) for o, w in zip(out, want, strict=True))
