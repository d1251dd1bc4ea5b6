"""What scripts ask ``torch_npu.distributed`` of the process group ``hccl``."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def is_hccl_available() -> bool:
    """Return whether ``init_process_group("hccl")`` works: this torch has gloo, and the group.

    The process group is an extension of its own, which a package built without torch lacks.
    """
    import importlib.util

    import torch.distributed as dist

    has_group = importlib.util.find_spec("onnxruntime_npu._torch_distributed") is not None
    return has_group and dist.is_available() and dist.is_gloo_available()


def _is_support_hccl_comm_name() -> bool:
    """Return whether groups take a name from ``_set_hccl_comm_name``."""
    return is_hccl_available()


def _make_hccl_premul_sum(factor: float | torch.Tensor) -> Any:
    """Return the reduction that multiplies each term by ``factor`` before it adds them."""
    import torch.distributed as dist

    return dist._make_nccl_premul_sum(factor)  # type: ignore[attr-defined]


def reduce_scatter_tensor_uneven(
    output: torch.Tensor,
    input: torch.Tensor,
    input_split_sizes: Sequence[int] | None = None,
    op: Any = None,
    group: Any = None,
    async_op: bool = False,
) -> Any:
    """Reduce ``input`` over the ranks, of which rank r gets ``input_split_sizes[r]`` rows.

    Args:
        output: this rank's rows, an npu tensor of ``input``'s dtype.
        input: of one shape on all ranks, an npu tensor.
        input_split_sizes: rows of each rank, the same on all of them; as many for each by default.
        op: a ``torch.distributed.ReduceOp``, a sum by default.
        group: the ranks, all by default.
        async_op: whether to return a work instead of waiting.

    Returns:
        A work, or None: also where this rank is not of the group, or a tensor is not on npu, of
        both of which it warns only.

    Raises:
        RuntimeError: the sizes do not fit.
    """
    import torch.distributed as dist

    group = _group_of("reduce_scatter_tensor_uneven", group, output, input)
    if group is None:
        return None
    options = dist.ReduceScatterOptions()  # type: ignore[attr-defined]
    if op is not None:  # instead of a sum
        options.reduceOp = op
    parts = _parts("reduce_scatter_tensor_uneven", "input", input, input_split_sizes, group.size())
    return _ended(group.reduce_scatter([output], [parts], options), async_op)


def all_gather_into_tensor_uneven(
    output: torch.Tensor,
    input: torch.Tensor,
    output_split_sizes: Sequence[int] | None = None,
    group: Any = None,
    async_op: bool = False,
) -> Any:
    """Gather the rows of all ranks in ``output``, ``output_split_sizes[r]`` of rank r.

    Args:
        output: the rows of all ranks, an npu tensor of ``input``'s dtype.
        input: this rank's rows, an npu tensor.
        output_split_sizes: rows of each rank, the same on all of them; as many of each by default.
        group: the ranks, all by default.
        async_op: whether to return a work instead of waiting.

    Returns:
        A work, or None: also where this rank is not of the group, or a tensor is not on npu, of
        both of which it warns only.

    Raises:
        RuntimeError: the sizes do not fit.
    """
    group = _group_of("all_gather_into_tensor_uneven", group, output, input)
    if group is None:
        return None
    name = "all_gather_into_tensor_uneven"
    parts = _parts(name, "output", output, output_split_sizes, group.size())
    return _ended(group.allgather([parts], [input]), async_op)


def _group_of(call: str, group: Any, *tensors: torch.Tensor) -> Any:
    """Return the group of a call that this rank takes part in; warn and return None otherwise."""
    from torch.distributed import distributed_c10d

    if distributed_c10d._rank_not_in_group(group):
        distributed_c10d._warn_not_in_group(call)
        return None
    if any(tensor.device.type != "npu" for tensor in tensors):
        kinds = ", ".join(str(tensor.device) for tensor in tensors)
        warnings.warn(f"[hccl] {call} takes only npu tensors, got some on {kinds}", stacklevel=3)
        return None
    return group or distributed_c10d._get_default_group()


def _parts(
    call: str, what: str, whole: torch.Tensor, sizes: Sequence[int] | None, ranks: int
) -> list[torch.Tensor]:
    rows = whole.shape[0]
    if not sizes:
        if rows % ranks:
            raise RuntimeError(
                f"[hccl] {call} expected a first dimension of the {what} that {ranks} ranks "
                f"divide, got {rows}"
            )
        sizes = [rows // ranks] * ranks
    if len(sizes) != ranks or min(sizes) < 0 or sum(sizes) != rows:
        raise RuntimeError(
            f"[hccl] {call} expected {ranks} sizes that add up to {rows}, the first dimension of "
            f"the {what}, got {list(sizes)}"
        )
    return list(whole.split(list(sizes)))


def _ended(work: Any, async_op: bool) -> Any:
    if async_op:
        return work
    work.wait()
    return None
