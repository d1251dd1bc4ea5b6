"""Top-k, then top-p filtering of logits. Source: torch_npu.npu_top_k_top_p."""

from onnxruntime_npu.opdef import FLOATS, Sample, check, check_indices, npu_op, torch

op = npu_op(
    "npu_top_k_top_p(Tensor logits, Tensor? p=None, Tensor? k=None) -> Tensor",
    onnx="NPUTopKTopP",
    dtypes={"logits": FLOATS, "p": FLOATS, "k": ["int32"], "y": FLOATS},
    may_alias=[("logits", "y")],
)


@op.reference
def reference(logits, p=None, k=None):
    """y = logits, with -inf at removed ones.

    logits: [B, V]; p: [B] of logits' dtype, in [0, 1]; k: [B] int32, in [1, V]. k removes
    logits smaller than the row's k-th largest. Then p removes logits in ascending order, equal ones
    by position, while their cumulative softmax is at most 1 - p; the last is never removed.
    """
    check(
        logits.dim() == 2,
        f"[npu_top_k_top_p] expected logits of shape [B, V], got {list(logits.shape)}",
    )
    check(
        p is not None or k is not None,
        "[npu_top_k_top_p] expected p or k, which say what is removed, got neither",
    )
    rows = [logits.shape[0]]
    check(
        p is None or (list(p.shape) == rows and p.dtype == logits.dtype),
        f"[npu_top_k_top_p] expected p of shape {rows} and {logits.dtype}, logits' dtype, "
        f"got {'' if p is None else f'{list(p.shape)} and {p.dtype}'}",
    )
    check(
        k is None or (list(k.shape) == rows and k.dtype == torch.int32),
        f"[npu_top_k_top_p] expected k of shape {rows} and torch.int32, "
        f"got {'' if k is None else f'{list(k.shape)} and {k.dtype}'}",
    )
    count = logits.shape[1]
    if k is not None and count:
        check_indices(k, 1, count + 1, "[npu_top_k_top_p] expected k")
    if p is not None and count:
        check_indices(p, 0, 1, "[npu_top_k_top_p] expected p", closed=True)
    kept, order = logits.sort(dim=-1, stable=True)
    if k is not None and count:
        smallest = kept.gather(1, (count - k.to(torch.int64))[:, None])
        kept = kept.masked_fill(kept < smallest, -torch.inf)
    if p is not None:
        wide = kept.to(torch.promote_types(kept.dtype, torch.float32))
        mass = torch.softmax(wide, -1).cumsum(-1)
        is_last = torch.arange(count, device=logits.device) == count - 1
        removed = (mass <= (1 - p)[:, None]) & ~is_last
        kept = kept.masked_fill(removed, -torch.inf)
    return torch.empty_like(kept).scatter(1, order, kept)


@op.function
def body(b, call, logits, p, k):
    wide = b.Cast(logits, to="float32")
    count = b.Slice(b.Shape(wide), [1], [2])
    kept, order = b.TopK(wide, count, axis=1, largest=0, sorted=1, _outputs=2)
    infinity = b.const(float("-inf"), "float32")
    if k is not None:
        place = b.Sub(count, b.Unsqueeze(b.Cast(k, to="int64"), [1]))
        kept = b.Where(b.Less(kept, b.GatherElements(kept, place, axis=1)), infinity, kept)
    if p is not None:
        mass = b.CumSum(b.Softmax(kept, axis=1), b.const(1, "int64"))
        rest = b.Cast(b.Sub(1.0, b.Cast(p, to="float32")), to=call.dtype("p"))
        small = b.LessOrEqual(mass, b.Unsqueeze(b.Cast(rest, to="float32"), [1]))
        places = b.Range(b.const(0, "int64"), b.Squeeze(count), b.const(1, "int64"))
        small = b.And(small, b.Less(b.Add(places, b.const(1, "int64")), count))
        kept = b.Where(small, infinity, kept)
    y = b.ScatterElements(wide, order, kept, axis=1)
    return b.Cast(y, to=call.dtype("logits"))


@op.samples
def samples(make):
    inf = float("inf")
    yield Sample(
        make.tensor([[1.0, 4.0, 2.0, 3.0]]),
        make.tensor([0.7]),
        make.tensor([3], "int32"),
        id="catalogue",
        expect=[[[-inf, 4.0, -inf, 3.0]]],
    )
    # The values of p and 1 - p are exact in every dtype.
    p = make.tensor([0.875, 0.5, 0.25])
    k = make.tensor([5, 40, 1], "int32")
    yield Sample(make(3, 50), p, k, id="both")
    yield Sample(make(3, 50), None, k, id="k_only")
    yield Sample(make(3, 50), p, id="p_only")
    yield Sample(make(3, 50), make.tensor([0.0, 0.0, 0.0]), id="p_0_keeps_the_last")
    yield Sample(make(3, 50), p, make.tensor([50, 50, 50], "int32"), id="k_all")
    yield Sample(
        make.tensor([[2.0, 1.0, 2.0, 1.0, 2.0, 1.0]]),
        None,
        make.tensor([2], "int32"),
        id="equal_logits_all_survive_k",
        expect=[[[2.0, -inf, 2.0, -inf, 2.0, -inf]]],
    )
    yield Sample(
        make.tensor([[1.0, 1.0, 1.0, 1.0]]),
        make.tensor([0.5]),
        id="first_equal_logits_fall_to_p",
        expect=[[[-inf, -inf, 1.0, 1.0]]],
    )
    yield Sample(make.tensor([[-inf, 2.0, -inf, 1.0]]), make.tensor([0.5]), id="infinities")
    yield Sample(make(2, 1), p[:2], make.tensor([1, 1], "int32"), id="one_logit")
    yield Sample(make(5, 9000, scale=4.0), make.tensor([0.875] * 5), id="threads")
    yield Sample(make(0, 8), make.tensor([]), make.ints(0, dtype="int32"), id="empty_batch")
    yield Sample(make(50, 3).t(), p, k, id="not_contiguous")


for _dtype in FLOATS:
    op.tolerance(_dtype, rtol=0, atol=0, reason="logits are kept or replaced by -inf")

op.errors(
    lambda make: Sample(make(2, 8), None, make.tensor([3, 9], "int32")),
    match=r"\[npu_top_k_top_p\] expected k in \[1, 9\), got 9",
    needs_values=True,
    id="k_too_large",
)
op.errors(
    lambda make: Sample(make(2, 8), None, make.tensor([0, 3], "int32")),
    match=r"\[npu_top_k_top_p\] expected k in \[1, 9\), got 0",
    needs_values=True,
    id="k_zero",
)
op.errors(
    lambda make: Sample(make(2, 8), make.tensor([0.5, 1.5])),
    match=r"\[npu_top_k_top_p\] expected p in \[0, 1\], got 1.5",
    needs_values=True,
    id="p",
)
op.errors(
    lambda make: Sample(make(2, 8)),
    match=r"\[npu_top_k_top_p\] expected p or k, which say what is removed, got neither",
    id="neither",
)
op.errors(
    lambda make: Sample(make(8)),
    match=r"\[npu_top_k_top_p\] expected logits of shape \[B, V\], got \[8\]",
    id="rank",
)
op.errors(
    lambda make: Sample(make(2, 8), make(1)),
    match=r"\[npu_top_k_top_p\] expected p of shape \[2\] and .*, logits' dtype, got .*\[1\]",
    id="p_shape",
)
op.errors(
    lambda make: Sample(make(2, 8), None, make.ints(3, dtype="int32")),
    match=r"\[npu_top_k_top_p\] expected k of shape \[2\] and .*int32, got .*\[3\]",
    id="k_shape",
)
