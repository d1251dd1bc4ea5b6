"""Every row of the supported list, called for real by its name in torch_npu.

supported_rows.txt has the names of all its rows. Operators are called here: those of this project
with the first sample of their definition, the others as below. The rows of the device API are
called by tests/device/test_api_table.py, each with checks of its effect.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime_npu
import pytest
import torch
from onnxruntime_npu import torch_device
from onnxruntime_npu.npu.api_table import ROWS
from onnxruntime_npu.opdef import Op
from onnxruntime_npu.opdef.docs import markdown
from onnxruntime_npu.ops import torch_names
from op_paths import bind, in_place, samples

NAMES = Path(__file__).with_name("supported_rows.txt").read_text().split()
OF_THE_DEVICE = {row.name for row in ROWS if row.supported}


def _adam(name: str, *numbers: float) -> Any:
    out = [torch.full((2,), v).npu() for v in (1.0, 0.1, 0.2)]
    grad = torch.full((2,), 0.5).npu()
    if name == "npu_apply_adam":
        return onnxruntime_npu.npu_apply_adam(*numbers, grad, None, None, out=out)
    return onnxruntime_npu.npu_bert_apply_adam(*numbers, grad, 0, 0, 0.1, out=out)


def _erase_stream() -> torch.Tensor:
    tensor, stream = torch.zeros(2).npu(), torch.npu.Stream()
    tensor.record_stream(stream)
    onnxruntime_npu.erase_stream(tensor, stream)
    return tensor


def _rows() -> torch.Tensor:
    return torch.ones(2, 3).npu()


BY_HAND: dict[str, Callable[[], Any]] = {
    "copy_memory_": lambda: onnxruntime_npu.copy_memory_(torch.zeros(2, 3).npu(), _rows()),
    "empty_with_format": lambda: onnxruntime_npu.empty_with_format((2, 3), device="npu"),
    "empty_with_swapped_memory": lambda: onnxruntime_npu.empty_with_swapped_memory(
        [2, 2], device="npu"
    ).fill_(1),
    "erase_stream": _erase_stream,
    "matmul_checksum": lambda: onnxruntime_npu.matmul_checksum(
        *(torch.eye(2, dtype=torch.bfloat16).npu() for _ in range(3))
    ),
    "npu.disable_deterministic_with_backward": lambda: (
        onnxruntime_npu.npu.disable_deterministic_with_backward(_rows())
    ),
    "npu.enable_deterministic_with_backward": lambda: (
        onnxruntime_npu.npu.disable_deterministic_with_backward(
            onnxruntime_npu.npu.enable_deterministic_with_backward(_rows())
        )
    ),
    "npu_apply_adam": lambda: _adam("npu_apply_adam", 0.9, 0.999, 0.01, 0.9, 0.999, 1e-8),
    "npu_bert_apply_adam": lambda: _adam("npu_bert_apply_adam", 0.01, 0.9, 0.999, 1e-8),
    "npu_format_cast": lambda: onnxruntime_npu.npu_format_cast(_rows(), 2),
    "npu_grouped_matmul": lambda: onnxruntime_npu.npu_grouped_matmul(
        [_rows()], [torch.ones(3, 4).npu()], group_type=-1
    ),
    "npu_format_cast_": lambda: onnxruntime_npu.npu_format_cast_(_rows(), 2),
}


def _call(name: str) -> Any:
    if name in BY_HAND:
        return BY_HAND[name]()
    op, schema = torch_names()[name]
    if schema.overload and op.schema.name == name:  # another overload of the operator itself
        schema = op.schema
    sample = samples(op, op.sample_dtypes[0])[0]
    if isinstance(op, Op) and op.inplace is not None and schema is op.inplace:
        return in_place(op, sample)
    bound = bind(op, sample)
    values = {n: v.npu() if isinstance(v, torch.Tensor) else v for n, v in bound.items()}
    positional = [values[a.name] for a in schema.arguments if not a.keyword_only]
    keywords = {a.name: values[a.name] for a in schema.arguments if a.keyword_only}
    return getattr(onnxruntime_npu, name)(*positional, **keywords)


@pytest.mark.skipif(not torch_device.is_built(), reason="this build has no torch device")
@pytest.mark.parametrize("name", [n for n in NAMES if n not in OF_THE_DEVICE or n in BY_HAND])
def test_row_is_called(name: str) -> None:
    result = _call(name)
    returns = name in BY_HAND or torch_names()[name][1].returns
    assert result is not None or not returns


def test_the_table_of_operators_is_current() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "operators.md"
    assert page.read_text() == markdown(), (
        "run: python -m onnxruntime_npu.opdef.docs > docs/operators.md"
    )


def test_the_table_has_every_row() -> None:
    page = markdown()
    rows = [name for name in NAMES if name not in OF_THE_DEVICE]
    assert len(rows) > 100
    assert [name for name in rows if f"`{name}`" not in page] == []
