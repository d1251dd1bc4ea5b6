"""Which buffers are written: those shared by an input and an output, and mutated arguments.

A session may bind one OrtValue as an input and as the output that updates it or may reuse its
buffer; the kernel then works in that buffer. With two buffers the input stays unchanged.
All cases are derived from the definitions.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnxruntime as ort
import pytest
import torch
from onnxruntime_npu import ortvalue_from_torch, ortvalue_to_torch
from onnxruntime_npu.opdef import Op, all_ops
from op_paths import (
    NPU,
    _clone,
    _tensors,
    assert_on_npu,
    bind,
    check_close,
    dispatcher_call,
    is_repeated,
    make_model,
    node_inputs,
    reference,
    samples,
    session,
)

OPS = list(all_ops().values())


def _pairs(op: Op) -> list[list[tuple[int, int]]]:
    """Return the pairs (input, output) that one call may bind to one buffer, call by call."""
    updates = [list(op.mutable_alias)] if op.mutable_alias else []
    return updates + [[pair] for pair in op.may_alias]


def _calls(ops: Sequence[Op]) -> list[object]:
    """One parameter per operator, sample and of two dtypes; --exhaustive runs what repeats one."""
    return [
        pytest.param(
            op,
            dtype,
            i,
            id=f"{op.name}-{dtype}-{sample.id or i}",
            marks=[pytest.mark.exhaustive] if is_repeated(op, dtype, i) else [],
        )
        for op in ops
        for dtype in op.sample_dtypes[:2]
        for i, sample in enumerate(samples(op, dtype))
    ]


calls = pytest.mark.parametrize(
    ("op", "dtype", "i"), _calls([op for op in OPS if op.outputs and _pairs(op)])
)


def _run(
    op: Op, made: ort.InferenceSession, inputs: Sequence[ort.OrtValue], outputs: Sequence[object]
) -> None:
    binding = made.io_binding()
    for info, value in zip(made.get_inputs(), inputs, strict=True):
        binding.bind_ortvalue_input(info.name, value)
    for info, value in zip(made.get_outputs(), outputs, strict=True):
        binding.bind_ortvalue_output(info.name, value)
    made.run_with_iobinding(binding)
    binding.synchronize_outputs()


@calls
def test_outputs_in_the_buffers_of_inputs_and_in_others(op: Op, dtype: str, i: int) -> None:
    sample = samples(op, dtype)[i]
    given = node_inputs(op, bind(op, sample))
    # Node input positions, mapped to positions among the inputs that the call has.
    present = [k for k, (_, v) in enumerate(op.iterate_inputs(bind(op, sample))) if v is not None]
    want = reference(op, sample)
    plain = op.call_reference(**bind(op, sample))  # in the call's dtypes
    made = session(make_model(op, sample, body=True), NPU)
    assert_on_npu(made)
    for pairs in [[], *_pairs(op)]:  # first, each output has a buffer of its own
        bound = [(present.index(a), b) for a, b in pairs if a in present]
        bound = [
            (a, b)
            for a, b in bound
            if given[a].shape == plain[b].shape and given[a].dtype == plain[b].dtype
        ]
        inputs = [ortvalue_from_torch(t) for t in given]
        outputs = [ortvalue_from_torch(torch.zeros_like(t)) for t in plain]
        for a, b in bound:
            outputs[b] = inputs[a]
        addresses = [inputs[a].data_ptr() for a, _ in bound]
        _run(op, made, inputs, outputs)
        check_close(op, dtype, [ortvalue_to_torch(o).cpu() for o in outputs], want)
        assert [inputs[a].data_ptr() for a, _ in bound] == addresses
        _assert_kept(given, inputs, except_for=[a for a, _ in bound])


@pytest.mark.parametrize(("op", "dtype", "i"), _calls(OPS))
def test_call_mutates_only_arguments_marked_in_the_schema(op: Op, dtype: str, i: int) -> None:
    args, kwargs = dispatcher_call(op, samples(op, dtype)[i])
    positional = [a.name for a in op.schema.arguments if not a.keyword_only]
    bound = dict(zip(positional, args, strict=True)) | kwargs
    marked = {o.mutates for o in op.outputs}
    before = _clone(bound)
    getattr(torch.ops.npu, op.name)(*args, **kwargs)
    for name, value in bound.items():
        if name not in marked:
            for kept, old in zip(_tensors(value), _tensors(before[name]), strict=True):
                assert torch.equal(_bits(kept), _bits(old)), name
    if not op.mutable_alias:
        return
    # The functional variant, which tracing uses, writes to no argument.
    functional = _clone(before)
    getattr(torch.ops.npu, op.name).functional(
        *(functional[n] for n in positional), **{n: functional[n] for n in kwargs}
    )
    for name, value in functional.items():
        for kept, old in zip(_tensors(value), _tensors(before[name]), strict=True):
            assert torch.equal(_bits(kept), _bits(old)), name


def _assert_kept(
    given: Sequence[torch.Tensor],
    inputs: Sequence[ort.OrtValue],
    except_for: Sequence[int] = (),
) -> None:
    for k, (tensor, value) in enumerate(zip(given, inputs, strict=True)):
        if k not in except_for:
            assert torch.equal(_bits(ortvalue_to_torch(value).cpu()), _bits(tensor)), f"input {k}"


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes, so that NaN compares equal to itself."""
    if not tensor.numel():
        return tensor.new_empty(0, dtype=torch.uint8)
    return tensor.contiguous().view(-1).view(torch.uint8)


def test_in_place_variant_is_functionalized_by_torch():
    """``torch._enable_functionalization`` reaches it without Python's dispatcher."""
    x = torch.randn(4, 6)
    wrapped = torch._to_functional_tensor(x.clone())
    torch._enable_functionalization(reapply_views=False)
    try:
        result = torch.ops.npu.npu_silu_(wrapped)
    finally:
        torch._disable_functionalization()
    torch._sync(result)
    torch._sync(wrapped)
    expected = torch.nn.functional.silu(x)
    torch.testing.assert_close(torch._from_functional_tensor(result), expected)
    torch.testing.assert_close(torch._from_functional_tensor(wrapped), expected)
