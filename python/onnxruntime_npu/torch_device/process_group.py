"""``hccl`` for torch.distributed: collectives of npu tensors, exchanged by gloo."""

from __future__ import annotations

from typing import Any

BACKEND = "hccl"


def register(device_type: str) -> None:
    """Let ``init_process_group("hccl")`` and ``"cpu:gloo,npu:hccl"`` find the backend.

    A torch that was built without torch.distributed or without gloo has no such backend. Scripts
    ask ``torch.distributed.is_hccl_available()``, as they ask for other backends.
    """
    import torch.distributed as dist

    from ..distributed import is_hccl_available

    dist.is_hccl_available = is_hccl_available  # type: ignore[attr-defined]
    if dist.is_available() and dist.is_gloo_available():
        dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=[device_type])


def _create(group: Any, options: Any) -> Any:
    import torch.distributed as dist

    from .._torch_distributed import ProcessGroupHCCL  # type: ignore[import-not-found]

    if options is not None and not isinstance(options, ProcessGroupHCCL.Options):
        raise TypeError(
            "[hccl] expected pg_options to be ProcessGroupHCCL.Options, got "
            f"{type(options).__name__}"
        )

    def connect(store: Any, timeout: Any) -> Any:
        return dist.ProcessGroupGloo(store, group.group_rank, group.group_size, timeout=timeout)

    host = connect(group.store, group.timeout)
    host._set_sequence_number_for_group()
    return ProcessGroupHCCL(
        host,
        group.store,
        group.group_id,
        options or ProcessGroupHCCL.Options(),
        group.timeout,
        # Operators that communicate do so on streams, beside the collectives: gloo tells the
        # messages of two groups apart.
        lambda timeout: connect(dist.PrefixStore("operators", group.store), timeout),
    )
