"""What scripts ask ``torch_npu.distributed`` of the process group ``hccl``."""

from __future__ import annotations


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
