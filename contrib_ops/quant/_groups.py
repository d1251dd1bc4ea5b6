"""Groups of rows, given by the row at which each of them ends, or by their numbers of rows."""

from onnxruntime_npu.opdef import check, is_traced, torch


def check_groups(op, ends, rows):
    """Refuse ends that do not ascend to the number of rows; of a traced tensor none are known."""
    if is_traced(ends):
        return
    previous = 0
    for i, end in enumerate(ends.tolist()):
        check(
            previous <= end <= rows,
            f"[{op}] expected group_index to ascend up to the {rows} rows, "
            f"entry {i} in [{previous}, {rows}], got {end}",
        )
        previous = end
    check(
        previous == rows,
        f"[{op}] expected group_index to end with the {rows} rows, got {previous}",
    )


def rows_of_groups(table, ends, rows):
    """Return for each row that of the table which its group has."""
    passed = torch.arange(rows, device=table.device)[:, None] >= ends.to(torch.int64)
    return table.index_select(0, passed.sum(1).clamp(max=table.shape[0] - 1))


def body_rows_of_groups(b, table, ends, rows):
    """Build the same; rows is an int64 scalar."""
    numbers = b.Range(b.const(0, "int64"), rows, b.const(1, "int64"))
    passed = b.GreaterOrEqual(b.Unsqueeze(numbers, [1]), b.Cast(ends, to="int64"))
    return b.Gather(table, b.ReduceSum(b.Cast(passed, to="int64"), [1], keepdims=0), axis=0)


def check_counts(op, counts, rows):
    """Refuse counts that are negative or more than the rows; of a traced tensor none are known."""
    if is_traced(counts):
        return
    left = rows
    for i, count in enumerate(counts.tolist()):
        check(
            0 <= count <= left,
            f"[{op}] expected group_index to count up to the {rows} rows, "
            f"entry {i} in [0, {left}], got {count}",
        )
        left -= count
