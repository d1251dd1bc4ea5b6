"""Combines tensors in one block of memory, so that one operation covers all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def _elements(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().nbytes() // tensor.element_size()


def npu_combine_tensors(
    list_of_tensor: Sequence[torch.Tensor], require_copy_value: bool = True
) -> torch.Tensor | None:
    """Move npu tensors into one new 1-D tensor, one after the other, and return it.

    Args:
        list_of_tensor: contiguous npu tensors of one dtype; each becomes a view of its part.
        require_copy_value: copy their values; otherwise they become zero.

    Returns:
        The combined tensor; None for an empty list or no elements.

    Raises:
        RuntimeError: a member is None, not on npu, not contiguous, or of another dtype.
    """
    import torch

    if not list_of_tensor:
        return None
    for tensor in list_of_tensor:
        if tensor is None:
            raise RuntimeError("npu_combine_tensors: expected tensors, got None")
        if tensor.device.type != "npu":
            raise RuntimeError(f"npu_combine_tensors: expected npu tensors, got {tensor.device}")
        if not tensor.is_contiguous():
            raise RuntimeError("npu_combine_tensors: expected contiguous tensors")
        if tensor.dtype != list_of_tensor[0].dtype:
            raise RuntimeError(
                f"npu_combine_tensors: expected one dtype, got {list_of_tensor[0].dtype} and "
                f"{tensor.dtype}"
            )
    sizes = [_elements(tensor) for tensor in list_of_tensor]
    if sum(sizes) == 0:
        return None
    first = list_of_tensor[0]
    combined = torch.zeros(sum(sizes), dtype=first.dtype, device=first.device)
    begin = 0
    with torch.no_grad():
        for tensor, size in zip(list_of_tensor, sizes, strict=True):
            # Each gets its own storage over its part of the memory.
            own = torch.from_dlpack(combined[begin : begin + size])
            part = torch.as_strided(own, tensor.shape, tensor.stride(), tensor.storage_offset())
            if require_copy_value:
                part.copy_(tensor)
            tensor.data = part
            begin += size
    return combined


def get_part_combined_tensor(
    combined_tensor: torch.Tensor | None, index: int, size: int
) -> torch.Tensor | None:
    """Return ``size`` elements of a combined tensor from ``index`` on, sharing its memory.

    Raises:
        RuntimeError: the range exceeds its storage.
    """
    if combined_tensor is None or size == 0:
        return None
    if index < 0 or size < 0 or index + size > _elements(combined_tensor):
        raise RuntimeError(
            f"expected a part within {_elements(combined_tensor)} elements, got {size} from {index}"
        )
    return combined_tensor.detach().as_strided((size,), (1,), index)


def is_combined_tensor_valid(
    combined_tensor: torch.Tensor | None, list_of_tensor: Sequence[torch.Tensor]
) -> bool:
    """Return whether every tensor is contiguous and starts in the combined tensor's memory."""
    if not list_of_tensor:
        return True
    if combined_tensor is None:
        return False
    storage = combined_tensor.untyped_storage()
    begin, end = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
    return all(
        t is not None and t.is_contiguous() and begin <= t.data_ptr() < end for t in list_of_tensor
    )
