"""Nothing to compute: batches, sequences and lists of length 0, alone and beside others.

Each size of a sample that may change is set to 0, and each entry of its lists of lengths or ends is
made an empty sequence, or the only one. Kernel, reference, fake form and gradient then refuse the
call in the same words, or give the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from onnxruntime_npu.opdef import Op, Sample, all_ops
from op_paths import (
    _call,
    _clone,
    _flat,
    bind,
    check_close,
    check_fake,
    eager,
    fake_call,
    samples,
)
from test_refusals import LARGE, _outcome
from test_symbolic_sizes import _free, _resized, _tensors

pytestmark = pytest.mark.slow  # a sweep over all operators beside those of test_ops.py

# Each sample makes many calls. The first two of an operator cover its batch axes.
calls = pytest.mark.parametrize(
    ("op", "i"),
    [
        pytest.param(
            op, i, id=f"{op.name}-{sample.id or i}", marks=[pytest.mark.exhaustive] if i > 1 else []
        )
        for op in all_ops().values()
        for i, sample in enumerate(samples(op, op.sample_dtypes[0]))
        if sum(t.numel() for _, _, t in _tensors(bind(op, sample))) <= LARGE
    ],
)


def _lists(op: Op, bound: Mapping[str, Any]) -> list[str]:
    """Return the names of the lists of lengths, or ends, that a call gives."""
    return [x.name for x in op.inputs if x.is_list_of_ints and bound[x.name]]


def _without(values: Sequence[int], i: int) -> Iterator[list[int]]:
    """Yield the list with sequence ``i`` empty, of lengths and of ends."""
    for nothing in (0, values[i - 1] if i else 0):
        yield [*values[:i], nothing, *values[i + 1 :]]


def _only(values: Sequence[int], i: int) -> Iterator[list[int]]:
    """Yield the list with no sequence but ``i``, of lengths and of ends."""
    yield [n if j == i else 0 for j, n in enumerate(values)]
    yield [0] * i + [max(values)] * (len(values) - i)


def _variants(op: Op, bound: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for group in _free(op, bound).values():
        yield f"{group} of size 0", _resized(bound, dict.fromkeys(group, 0))
    lists = {name: list(bound[name]) for name in _lists(op, bound)}
    changes: list[dict[str, list[int]]] = []
    for name, values in lists.items():
        for i in range(len(values)):
            changes += [{name: c} for c in (*_without(values, i), *_only(values, i))]
            for other, others in lists.items():
                if other != name and i < len(others):  # rows without keys, and keys without rows
                    pairs = itertools.product(_without(values, i), _only(others, i))
                    changes += [{name: c, other: d} for c, d in pairs]
    seen = [lists]
    for change in changes:
        if {**lists, **change} not in seen:
            seen.append({**lists, **change})
            yield str(change), {**bound, **change}


@calls
def test_kernel_and_reference_agree(op: Op, i: int) -> None:
    dtype = op.sample_dtypes[0]
    for what, bound in _variants(op, bind(op, samples(op, dtype)[i])):
        sample = Sample.of(bound)
        got, refusal = _outcome(op, lambda sample=sample: eager(op, sample))
        want, expected = _outcome(op, lambda bound=bound: op.call_reference(**_clone(bound)))
        assert refusal == expected, what
        if refusal:
            continue
        check_close(op, dtype, got, want)
        check_fake(fake_call(op, sample), got, what)


@pytest.mark.parametrize(
    ("op", "i"),
    [p for p in calls.args[1] if p.values[0].backward_formula],
)
def test_gradients_agree(op: Op, i: int) -> None:
    formula = op.backward_formula
    kernel = getattr(torch.ops.npu, op.name)
    assert formula is not None
    for what, bound in _variants(op, bind(op, samples(op, op.sample_dtypes[0])[i])):
        if _outcome(op, lambda bound=bound: op.call_reference(**_clone(bound)))[1]:
            continue
        grads = []
        for run in (kernel, op.reference_function):
            given = _clone(bound)
            leaves = [given[n] for n in formula.arguments if isinstance(given[n], torch.Tensor)]
            leaves = [t.requires_grad_() for t in leaves if t.is_floating_point()]
            results = _flat(_call(run, op, given) if run is kernel else run(**given))
            total = sum(
                result.double().sum()
                for output, result in zip(op.outputs, results, strict=False)
                if output.name in formula.outputs
            )
            total.backward()
            grads.append([torch.zeros_like(t) if t.grad is None else t.grad for t in leaves])
        for got, want in zip(*grads, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4, msg=what)
