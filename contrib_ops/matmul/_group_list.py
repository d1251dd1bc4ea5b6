"""Which rows are in which group: the forms of group_list."""

from onnxruntime_npu.opdef import is_traced, torch

from ._grouped_scheme import refuse_unless

NONE, ROWS, DEPTH = -1, 0, 2  # what group_type divides
ENDS, COUNTS, PAIRS = 0, 1, 2  # what group_list_type says of group_list


def check_group_list(group_list, group_type, group_list_type, groups):
    """Refuse a group_list that is missing, superfluous or of a wrong shape."""
    refuse_unless(
        group_list_type in (ENDS, COUNTS, PAIRS),
        f"expected group_list_type 0, 1 or 2, got {group_list_type}",
    )
    if group_type == NONE:
        refuse_unless(group_list is None, "expected no group_list with group_type -1, got one")
        return
    refuse_unless(
        group_list is not None, f"expected group_list with group_type {group_type}, got none"
    )
    if group_list_type == PAIRS:
        refuse_unless(
            group_type == ROWS, "expected group_list_type 0 or 1 with group_type 2, got 2"
        )
        refuse_unless(
            group_list.dim() == 2 and group_list.shape[1] == 2,
            f"expected group_list of shape [groups, 2], got {list(group_list.shape)}",
        )
        return
    refuse_unless(
        group_list.dim() == 1 and (groups is None or group_list.shape[0] == groups),
        f"expected group_list of shape [{'groups' if groups is None else groups}], "
        f"got {list(group_list.shape)}",
    )


def check_groups(group_list, group_list_type, limit, groups):
    """Refuse values that do not divide `limit` rows in order; of a traced tensor none are known."""
    if is_traced(group_list):
        return
    previous = 0
    for i, entry in enumerate(group_list.tolist()):
        value = entry
        if group_list_type == PAIRS:
            index, value = entry
            refuse_unless(
                0 <= index < groups,
                f"expected indices of group_list in [0, {groups}), entry {i}, got {index}",
            )
        low, high = (previous, limit) if group_list_type == ENDS else (0, limit - previous)
        refuse_unless(
            low <= value <= high,
            f"expected group_list to divide {limit} rows in order, entry {i} in [{low}, {high}], "
            f"got {value}",
        )
        previous = value if group_list_type == ENDS else previous + value


def members(group_list, group_list_type, limit, groups):
    """Return bool [groups, limit]: which of the rows are in which group."""
    counts = group_list[:, 1] if group_list_type == PAIRS else group_list
    ends = counts if group_list_type == ENDS else counts.cumsum(0)
    begins = torch.cat([ends.new_zeros(1), ends[:-1]])
    rows = torch.arange(limit, device=ends.device)
    inside = (rows >= begins[:, None]) & (rows < ends[:, None])
    if group_list_type != PAIRS:
        return inside
    named = group_list[:, 0] == torch.arange(groups, device=ends.device)[:, None]
    return (named[:, :, None] & inside).any(1)


def body_members(b, group_list, group_list_type, limit, groups):
    """Build members; `limit` is an int64 scalar, `groups` the size of the weight's first axis."""
    zero, one = b.const(0, "int64"), b.const(1, "int64")
    counts = group_list
    if group_list_type == PAIRS:
        counts = b.Gather(group_list, one, axis=1)
    ends = counts if group_list_type == ENDS else b.CumSum(counts, zero)
    begins = b.Concat([0], b.Slice(ends, [0], [-1]), axis=0)
    # An empty list has no ends, and one begin too many.
    begins = b.Slice(begins, [0], b.Shape(ends))
    rows = b.Range(zero, limit, one)
    inside = b.And(
        b.GreaterOrEqual(rows, b.Unsqueeze(begins, [1])), b.Less(rows, b.Unsqueeze(ends, [1]))
    )
    if group_list_type != PAIRS:
        return inside
    indices = b.Gather(group_list, zero, axis=1)
    named = b.Equal(indices, b.Unsqueeze(b.Range(zero, groups, one), [1]))
    both = b.And(b.Unsqueeze(named, [2]), b.Unsqueeze(inside, [0]))
    return b.Greater(b.ReduceSum(b.Cast(both, to="int32"), [1], keepdims=0), b.const(0, "int32"))
