"""Calls one change from a valid one: a tensor of another rank or size, a wrong scalar or name.

Derived from the samples, so that a new operator needs no test code. The kernel and the reference,
which checks traced calls, agree on every change: both refuse with the same message and operator
name, or both give results of the same shapes and dtypes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from onnxruntime_npu.errors import ArgumentError, DeviceError
from onnxruntime_npu.opdef import Op, Sample, all_ops
from op_paths import _clone, _flat, _tensors, bind, eager, samples

LARGE = 60_000  # larger calls would only take time
OVERFLOW = "expected a shape whose number of elements fits int64"


def _changes(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values that are one change from an argument's value."""
    if isinstance(value, torch.Tensor):
        yield from _changed_tensors(value)
    elif isinstance(value, bool):
        yield "negated", not value
    elif isinstance(value, int):
        for number in (-1, 0, 2**31, -(2**63), 2**63 - 1):
            yield str(number), number
    elif isinstance(value, float):
        for fraction in (math.nan, math.inf, -1.0):
            yield str(fraction), fraction
    elif isinstance(value, str):
        yield "unknown", "NOPE"
    elif isinstance(value, (list, tuple)) and all(isinstance(v, int) for v in value):
        yield "no_entries", []
        if value:
            head, last = list(value[:-1]), value[-1]
            yield "an_entry_less", head
            yield "an_entry_more", [*head, last, last]
            yield "negative_entry", [*head, -1]
            yield "huge_entry", [*head, 2**62]


def _changed_tensors(value: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    flat = value.flatten()
    yield "rank_more", value[None]
    yield "flat", flat
    yield "rank_less", value.select(0, 0) if value.dim() and len(value) else flat
    if value.numel():
        yield "scalar", flat[0]
    for axis, size in enumerate(value.shape):
        yield f"empty_{axis}", value.narrow(axis, 0, 0)
        if size:
            yield f"shorter_{axis}", value.narrow(axis, 0, size - 1)
            yield f"longer_{axis}", torch.cat([value, value.narrow(axis, 0, 1)], axis)
    if value.numel() and value.dtype in (torch.int32, torch.int64):
        for end in (torch.iinfo(value.dtype).min, torch.iinfo(value.dtype).max):
            changed = flat.clone()
            changed[-1] = end
            yield f"last_{end}", changed.view(value.shape)


def _calls(op: Op) -> Iterator[tuple[str, Sample]]:
    """Yield changed calls; for every argument, of the first two samples that pass it."""
    optional = {x.name for x in op.inputs if x.optional}
    used: dict[str, int] = {}
    for i, sample in enumerate(samples(op, op.sample_dtypes[0])):
        bound = bind(op, sample)
        if sum(t.numel() for value in bound.values() for t in _tensors(value)) > LARGE:
            continue
        for name, value in bound.items():
            if value is None or name == "seed" or used.get(name, 0) == 2:
                continue
            used[name] = used.get(name, 0) + 1
            absent = [("absent", None)] if name in optional else []
            for change, changed in [*absent, *_changes(value)]:
                yield f"{sample.id or i}, {name} {change}", Sample.of({**bound, name: changed})


def _outcome(op: Op, run: Any) -> tuple[list[torch.Tensor], str]:
    """Return the results, or the message of the refusal as a kernel and a reference write it."""
    try:
        return _flat(run()), ""
    except (ArgumentError, DeviceError) as error:  # values are checked only while a kernel runs
        message = str(error).split("\n")[0]
    assert f"{op.name.removeprefix('_')}] " in message
    # A kernel also says where in its tensor a number is; a reference looks at all of them at once.
    message = re.sub(r" at \d+$", "", message)
    return [], message.replace("torch.", "").removesuffix(".0")


@pytest.mark.parametrize("op", all_ops().values(), ids=lambda op: op.name)
def test_kernel_and_reference_refuse_the_same(op: Op) -> None:
    refused = 0
    for what, sample in _calls(op):
        bound = _clone(bind(op, sample))
        got, refusal = _outcome(op, lambda sample=sample: eager(op, sample))
        want, expected = _outcome(op, lambda bound=bound: op.call_reference(**bound))
        # Python accepts element counts that no kernel can hold.
        assert refusal == expected or (OVERFLOW in refusal and expected), what
        refused += bool(refusal)
        for a, b in zip(got, want, strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype), what
    # A single tensor can only have a wrong dtype: test_wrong_dtype_is_reported.
    assert refused or (len(op.inputs) == 1 and not op.attributes)
