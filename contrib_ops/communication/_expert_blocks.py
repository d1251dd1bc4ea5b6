"""What npu_alltoallv_gmm and npu_gmm_alltoallv share: blocks of rows, one for each rank and expert.

Entry r * e + j of a list of counts is about expert j of the e that rank r has.
"""

from onnxruntime_npu.opdef import ABSENT, FLOATS, INDICES, Sample, check, npu_op, torch, wide

from ._ranks import ALONE, check_comm_mode, check_group, empty

_MOST_ROWS = 2**31 - 1


def define(op, onnx, outputs, flag=""):
    """Define an operator of experts but for its functions; ``flag``: an argument of it alone."""
    results = ", ".join(["Tensor"] * len(outputs))
    made = npu_op(
        f"{op}(Tensor gmm_x, Tensor gmm_weight, str hcom, int ep_world_size, int[] send_counts,"
        " int[] recv_counts, *, Tensor? send_counts_tensor=None, Tensor? recv_counts_tensor=None,"
        " Tensor? mm_x=None, Tensor? mm_weight=None, bool trans_gmm_weight=False,"
        f" bool trans_mm_weight=False,{flag} str? comm_mode=None) -> ({results})",
        onnx=onnx,
        outputs=outputs,
        dtypes={
            **{name: FLOATS for name in ("gmm_x", "gmm_weight", "mm_x", "mm_weight", *outputs)},
            **{name: INDICES for name in ("send_counts_tensor", "recv_counts_tensor")},
        },
        typings=[
            {
                **dict.fromkeys(outputs, dtype),
                **{"gmm_x": dtype, "mm_x": shared, "mm_y": dtype if shared is ABSENT else shared},
            }
            for dtype in FLOATS
            for shared in (ABSENT, *FLOATS)
        ],
        not_portable=ALONE,
    )
    for name in ("gmm_x", "gmm_weight"):
        made.static(name, 0, reason="the counts are attributes")
    return made


def checked_shapes(op, gmm_x, gmm_weight, mm_x, mm_weight, trans_gmm_weight, trans_mm_weight):
    """Refuse operands that do not fit; return the numbers of experts and of both products' columns.

    The last is None without a shared expert.
    """
    depth, columns = (2, 1) if trans_gmm_weight else (1, 2)
    check(
        gmm_x.dim() == 2
        and gmm_weight.dim() == 3
        and gmm_weight.dtype == gmm_x.dtype
        and gmm_weight.shape[0] > 0
        and gmm_weight.shape[depth] == gmm_x.shape[1],
        f"[{op}] expected gmm_x [A, H] and gmm_weight of its dtype for one expert or more, "
        f"{'[e, N, H]' if trans_gmm_weight else '[e, H, N]'}, got {gmm_x.dtype} "
        f"{list(gmm_x.shape)} and {gmm_weight.dtype} {list(gmm_weight.shape)}",
    )
    check(
        (mm_x is None) == (mm_weight is None),
        f"[{op}] expected mm_x and mm_weight together, got one of them",
    )
    experts, n = gmm_weight.shape[0], gmm_weight.shape[columns]
    if mm_x is None:
        return experts, n, None
    depth, columns = (1, 0) if trans_mm_weight else (0, 1)
    check(
        mm_x.dim() == 2
        and mm_weight.dim() == 2
        and mm_x.dtype == mm_weight.dtype
        and mm_weight.shape[depth] == mm_x.shape[1],
        f"[{op}] expected mm_x [B, H] and mm_weight of its dtype, "
        f"{'[N, H]' if trans_mm_weight else '[H, N]'}, got {mm_x.dtype} {list(mm_x.shape)} and "
        f"{mm_weight.dtype} {list(mm_weight.shape)}",
    )
    return experts, n, mm_weight.shape[columns]


def check_counts(op, hcom, world_size, experts, send_counts, recv_counts, gmm_x, comm_mode):
    """Refuse a group and counts that cannot be."""
    check_comm_mode(op, comm_mode)
    check_group(op, hcom, world_size, gmm_x)
    for name, counts in (("send_counts", send_counts), ("recv_counts", recv_counts)):
        check(
            len(counts) == experts * world_size,
            f"[{op}] expected {name} of {experts} * {world_size} numbers, got {len(counts)}",
        )
        for count in counts:
            check(
                0 <= count <= _MOST_ROWS,
                f"[{op}] expected {name} from 0 to {_MOST_ROWS}, got {count}",
            )
    check(
        gmm_x.shape[0] == sum(send_counts),
        f"[{op}] expected {sum(send_counts)} rows of gmm_x, the sum of send_counts, "
        f"got {gmm_x.shape[0]}",
    )
    if hcom:
        return
    for j, (sent, received) in enumerate(zip(send_counts, recv_counts, strict=True)):
        check(
            sent == received,
            f"[{op}] expected rank 0 to receive from rank 0, of expert {j}, the {sent} rows that "
            f"it sends, got {received}",
        )


def empty_shared(gmm_x, mm_x, columns):
    """Return mm_y without its values; an empty tensor of gmm_x's dtype without mm_x."""
    if mm_x is None:
        return empty([0], gmm_x.dtype, gmm_x)
    return empty([mm_x.shape[0], columns], mm_x.dtype, mm_x)


def product(x, weight, transposed):
    matrix = weight.transpose(-1, -2) if transposed else weight
    return torch.matmul(wide(x), wide(matrix)).to(x.dtype)


def products(x, weight, counts, transposed):
    """Return the blocks of x, one behind the other, each times its expert's matrix."""
    blocks = x.split(list(counts))
    made = [product(b, weight[j], transposed) for j, b in enumerate(blocks)]
    return torch.cat(made)


def body_product(b, x, weight, transposed, dtype):
    matrix = b.Cast(weight, to="float32")
    matrix = b.Transpose(matrix, perm=[1, 0]) if transposed else matrix
    return b.Cast(b.MatMul(b.Cast(x, to="float32"), matrix), to=dtype)


def body_products(b, call, x, weight, counts):
    begin, made = 0, []
    for j, count in enumerate(counts):
        block = b.Slice(x, [begin], [begin + count], [0])
        matrix = b.Squeeze(b.Slice(weight, [j], [j + 1], [0]), [0])
        transposed = call.attrs["trans_gmm_weight"]
        made.append(body_product(b, block, matrix, transposed, call.dtype("gmm_x")))
        begin += count
    return made[0] if len(made) == 1 else b.Concat(*made, axis=0)


def samples_of(make):
    """Yield calls of one rank, without a group."""
    x, weight = make(7, 33, scale=0.2), make(3, 33, 9)
    counts = [4, 0, 3]
    yield Sample(x, weight, "", 1, counts, counts, id="experts")
    yield Sample(
        x,
        weight.transpose(1, 2).contiguous(),
        "",
        1,
        counts,
        counts,
        mm_x=make(5, 12, scale=0.3),
        mm_weight=make(8, 12),
        trans_gmm_weight=True,
        trans_mm_weight=True,
        id="transposed_shared",
    )
    yield Sample(make(0, 4), make(1, 4, 3), "", 1, [0], [0], id="no_rows")
    other = "bfloat16" if make.dtype == "float16" else "float16"
    yield Sample(
        x, weight, "", 1, counts, counts,
        mm_x=make(5, 12, scale=0.3, dtype=other), mm_weight=make(12, 8, dtype=other),
        comm_mode="", id="shared_of_another_dtype",
    )  # fmt: skip


def refusals(op):
    op.errors(
        lambda make: Sample(make(4, 8), make(2, 7, 3), "", 1, [2, 2], [2, 2]),
        match=r"expected gmm_x \[A, H\] and gmm_weight .* \[4, 8\] and .* \[2, 7, 3\]",
        id="depth",
    )
    op.errors(
        lambda make: Sample(make(4, 8), make(2, 8, 3), "", 1, [2, 1], [2, 1]),
        match=r"expected 3 rows of gmm_x, the sum of send_counts, got 4",
        id="rows",
    )
    op.errors(
        lambda make: Sample(make(4, 8), make(2, 8, 3), "", 1, [2, 2], [1, 3]),
        match=r"to receive from rank 0, of expert 0, the 2 rows that it sends, got 1",
        id="counts",
    )
    op.errors(
        lambda make: Sample(make(4, 8), make(2, 8, 3), "", 1, [2, 2], [2, 2], mm_x=make(2, 3)),
        match=r"expected mm_x and mm_weight together",
        id="half_shared",
    )
