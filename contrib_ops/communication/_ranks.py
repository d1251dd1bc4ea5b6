"""What the definitions of operators that communicate share.

A reference sees the arguments of one rank, so it computes with values only where a rank is alone;
with more of them, it gives shapes and dtypes to traces.
"""

from onnxruntime_npu.opdef import NotPortable, check, is_traced, torch

MOST_RANKS = 1024
ALONE = "calls with a group of ranks: ONNX has no operator that communicates"


def check_group(op, group, world_size, tensor):
    """Refuse a group that cannot be, and one of others where there are values to compute with."""
    if world_size is not None:
        check(
            1 <= world_size <= MOST_RANKS,
            f"[{op}] expected a world size from 1 to {MOST_RANKS}, got {world_size}",
        )
        check(
            group != "" or world_size == 1,
            f"[{op}] expected the name of a group of {world_size} ranks, got none",
        )
    check(
        group == "" or is_traced(tensor),
        f"[{op}] expected the name of a group of this rank, got '{group}'; see "
        "get_hccl_comm_name of torch's process group, or the provider option 'groups'",
    )


def check_alone(group):
    """Leave calls with other ranks without a body."""
    if group:
        raise NotPortable(ALONE)


def check_unused(op, given):
    """Refuse arguments that steer other devices: the value of each and the one that it may have."""
    for name, (value, allowed) in given.items():
        check(
            value == allowed,
            f"[{op}] expected {name} of {allowed} on this device, got {value}",
        )


def check_comm_mode(op, mode):
    """Refuse a way to communicate that does not exist; here they are all the same."""
    check(
        mode in (None, "", "ai_cpu", "aiv"),
        f"[{op}] expected comm_mode 'ai_cpu' or 'aiv', got '{mode}'",
    )


def check_no_tensors(op, given):
    """Refuse tensors that steer other devices."""
    for name, tensor in given.items():
        check(tensor is None, f"[{op}] expected no {name} on this device, got one")


def check_matrices(op, x1, x2, most_axes=2):
    """Refuse operands that are no matrices of one depth and one type."""
    check(
        2 <= x1.dim() <= most_axes and x2.dim() == 2 and x1.shape[-1] == x2.shape[0],
        f"[{op}] expected x1 [{'.., ' if most_axes > 2 else ''}M, K] and x2 [K, N], "
        f"got {list(x1.shape)} and {list(x2.shape)}",
    )


def check_bias(op, bias, n, dtypes):
    if bias is None:
        return
    check(
        list(bias.shape) == [n],
        f"[{op}] expected a bias of shape [{n}], got {list(bias.shape)}",
    )
    names = " or ".join(str(dtype) for dtype in dtypes)
    check(bias.dtype in dtypes, f"[{op}] expected a bias of dtype {names}, got {bias.dtype}")


def empty(shape, dtype, beside):
    return torch.empty(shape, dtype=dtype, device=beside.device)
