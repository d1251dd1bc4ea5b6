"""What the cases of test_process_group.py have in common."""

from __future__ import annotations

from collections.abc import Callable

import torch


def of_rank(rank: int, dtype: torch.dtype = torch.float32, rows: int = 2) -> torch.Tensor:
    """Different numbers for each rank that every dtype has."""
    return (torch.arange(rows * 3).reshape(rows, 3) % 2 + rank).to(dtype)


def same(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert got.device.type == "npu"
    assert torch.equal(got.cpu().view(torch.uint8), expected.contiguous().view(torch.uint8)), (
        got,
        expected,
    )


def fails(call: Callable[[], object], *parts: str) -> None:
    try:
        call()
    except (RuntimeError, ValueError) as error:
        assert all(part in str(error) for part in parts), str(error)
    else:
        raise AssertionError(f"expected an error with {parts}")
