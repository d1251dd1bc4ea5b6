"""Calls of operators that communicate, on this rank, and what it should get.

Each rank makes the samples of all ranks and computes what is expected of it without communication.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import onnxruntime as ort
import torch
import torch.distributed as dist
from onnxruntime_npu.opdef import Maker, Op, Sample, all_ops
from op_paths import NPU, bind
from rank_expectations import EXPECTED, FUSED_SUMS, GROUP_ARGUMENTS

RANK, SIZE = int(os.environ["PMI_RANK"]), int(os.environ["PMI_SIZE"])
OPS = {name: all_ops()[name] for name in EXPECTED}
TIMEOUT = 60  # seconds; ranks share two cores with whatever else runs


def group_name(group: dist.ProcessGroup | None = None) -> str:
    group = group or dist.distributed_c10d._get_default_group()
    return group._get_backend(torch.device("npu")).get_hccl_comm_name(dist.get_rank(group))


def of_ranks(op: Op, dtype: str, group: str) -> Iterator[tuple[list[Sample], Sample]]:
    """Yield every sample call of all ranks, and this rank's with the group."""
    makers = [op.sample_function(Maker(dtype, seed=rank)) for rank in range(SIZE)]
    for alone in zip(*makers, strict=True):
        calls = []
        for rank, sample in enumerate(alone):
            bound = bind(op, sample)
            of_group = GROUP_ARGUMENTS[op.name](bound, group, rank, SIZE)
            calls.append(None if of_group is None else Sample.of(bound | of_group))
        if calls[RANK] is not None:
            yield calls, calls[RANK]


def first_call(op: Op, group: str, dtype: str = "") -> Sample:
    return next(mine for _, mine in of_ranks(op, dtype or op.sample_dtypes[0], group))


def compare(op: Op, got: list[torch.Tensor], calls: list[Sample], atol: float = 0.0) -> None:
    """Compare with what the ranks compute alone, bit for bit but for sums of products."""
    expected = EXPECTED[op.name](op, [bind(op, sample) for sample in calls], RANK)
    for name, mine, want in zip((o.name for o in op.outputs), got, expected, strict=True):
        if want is None:
            continue
        assert mine.dtype == want.dtype and mine.shape == want.shape, (op.name, name, mine, want)
        rtol = 0.0
        if op.name in FUSED_SUMS:
            tolerance = op.tolerance_for(str(want.dtype).removeprefix("torch."))
            rtol, atol = tolerance.rtol, tolerance.atol
        torch.testing.assert_close(
            mine, want, rtol=rtol, atol=atol, msg=f"{op.name}.{name}: {want}"
        )


def provider_session(model: Any, **options: str) -> ort.InferenceSession:
    settings = {"communicator": "mpi", "communication_timeout": str(TIMEOUT), **options}
    made = ort.SessionOptions()
    made.log_severity_level = 3
    made.intra_op_num_threads = 1
    return ort.InferenceSession(model.SerializeToString(), made, providers=[(NPU, settings)])


def fails(call: Callable[[], object], *parts: str) -> None:
    try:
        call()
    except Exception as error:
        assert all(part in str(error) for part in parts), str(error)
    else:
        raise AssertionError(f"expected an error with {parts}")
