"""Tensors that npu has not, sparse and quantised ones: errors that say what to do instead."""

from __future__ import annotations

from typing import Any

_INSTEAD = {
    "Sparse": "sparse tensors: keep them on the CPU, or make them dense (to_dense()); embeddings "
    "have dense gradients with sparse=False",
    "SparseCsr": "sparse tensors: keep them on the CPU, or make them dense (to_dense())",
    "Quantized": "tensors of torch's quantised types: dequantize() them, or keep integers and "
    "scales, which npu's quantised matmuls take, as tensors of their own",
}
_kept: list[Any] = []  # torch forgets the kernels of a library that is collected


def register() -> None:
    """Let every operator that would make or take such a tensor raise NotImplementedError."""
    import torch

    for layout, instead in _INSTEAD.items():
        library = torch.library.Library("_", "IMPL", f"{layout}PrivateUse1")
        library.fallback(_refusal(instead))
        _kept.append(library)


def _refusal(instead: str) -> Any:
    def refuse(op: Any, *_: Any, **__: Any) -> None:
        raise NotImplementedError(f"[{op}] expected dense npu tensors, got {instead}")

    return refuse
