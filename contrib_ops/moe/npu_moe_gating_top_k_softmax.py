"""The experts of each token by softmax, with their weights.

Source: torch_npu.npu_moe_gating_top_k_softmax.
"""

from onnxruntime_npu.opdef import FLOATS, Sample, check, npu_op, torch

from ._gating import best, body_best, check_k
from ._rows import body_numbers, check_rows

op = npu_op(
    "npu_moe_gating_top_k_softmax(Tensor x, Tensor? finished=None, int k=1)"
    " -> (Tensor, Tensor, Tensor)",
    onnx="NPUMoeGatingTopKSoftmax",
    outputs=["y", "expert_idx", "row_idx"],
    dtypes={
        "x": FLOATS,
        "finished": ["bool"],
        "y": FLOATS,
        "expert_idx": ["int32"],
        "row_idx": ["int32"],
    },
)


@op.reference
def reference(x, finished=None, k=1):
    """y = the k largest of softmax(x), descending; expert_idx says which they are.

    x: [T, E] or [B, T, E]; finished: x's shape without the last axis; k: in [1, E]; y,
    expert_idx, row_idx: x's shape with k as the last axis, the latter two int32. The order is that
    of x: of equal values the lower expert is first, and NaN is above every number; softmax is in
    float32 and not normalised anew over the k. expert_idx is E where finished. row_idx[t, j] =
    j * T + t, with B * T for T and the rows of all batches in their order.
    """
    name = "npu_moe_gating_top_k_softmax"
    check(x.dim() in (2, 3), f"[{name}] expected x of rank 2 or 3, got {list(x.shape)}")
    *lead, experts = x.shape
    check_k(name, k, experts)
    check(
        finished is None or list(finished.shape) == lead,
        f"[{name}] expected finished {lead}, got {finished is not None and list(finished.shape)}",
    )
    rows = lead[0] if len(lead) == 1 else lead[0] * lead[1]
    check_rows(name, rows * k)
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    chosen = best(wide, k)
    y = torch.softmax(wide, -1).gather(-1, chosen).to(x.dtype)
    if finished is not None:
        chosen = torch.where(finished[..., None], experts, chosen)
    columns = torch.arange(k, device=x.device) * rows
    row_idx = torch.arange(rows, device=x.device)[:, None] + columns
    return y, chosen.to(torch.int32), row_idx.to(torch.int32).reshape(*lead, k)


@op.function
def body(b, call, x, finished):
    k = call.attrs["k"]
    wide = b.Cast(x, to="float32")
    chosen = body_best(b, wide, k)
    y = b.Cast(b.GatherElements(b.Softmax(wide, axis=-1), chosen, axis=-1), to=call.dtype("x"))
    shape = b.Shape(x)
    lead = b.Slice(shape, [0], [-1])
    if finished is not None:
        experts = b.Slice(shape, [-1], [2**62])
        chosen = b.Where(b.Unsqueeze(finished, [-1]), experts, chosen)
    rows = b.ReduceProd(lead, [0], keepdims=0)
    columns = b.Mul(b.const(range(k), "int64"), rows)
    row_idx = b.Add(b.Unsqueeze(body_numbers(b, rows), [1]), columns)
    row_idx = b.Reshape(row_idx, b.Concat(lead, b.const([k], "int64"), axis=0), allowzero=1)
    return y, b.Cast(chosen, to="int32"), b.Cast(row_idx, to="int32")


@op.samples
def samples(make):
    yield Sample(
        make.tensor([[1.0, 3.0, 2.0], [0.0, 0.0, 1.0]]),
        make.tensor([False, True], "bool"),
        2,
        id="catalogue",
        expect=[
            [[0.665241, 0.244728], [0.576117, 0.211942]] if make.dtype == "float32" else None,
            [[1, 2], [3, 3]],
            [[0, 2], [1, 3]],
        ],
    )
    yield Sample(
        make.tensor([[1.0, 2.0, 2.0, 0.0, 1.0, 2.0]]),
        k=5,
        id="equal_experts_in_their_order",
        expect=[None, [[1, 2, 5, 0, 4]], [[0, 1, 2, 3, 4]]],
    )
    yield Sample(make(7, 64), k=6)
    yield Sample(make(3, 5, 33), make.bools(3, 5), 4, id="batches")
    yield Sample(make(5, 9), k=9, id="every_expert")
    yield Sample(make(5, 1), id="one_expert")
    yield Sample(make(3, 300), k=40, id="many_experts")
    yield Sample(make(900, 64), k=8, id="threads")
    inf, nan = float("inf"), float("nan")
    yield Sample(
        make.tensor([[0.0, -inf, 200.0, -0.0, -inf], [1.0, nan, 3.0, nan, 2.0]]),
        k=4,
        id="extremes",
        expect=[None, [[2, 0, 3, 1], [1, 3, 2, 4]], None],
    )
    yield Sample(make(0, 8), make.bools(0), 2, id="no_tokens")
    yield Sample(make(16, 6).t(), k=2, id="not_contiguous")


def _refuse(id, match, make_sample):
    op.errors(make_sample, match=rf"\[npu_moe_gating_top_k_softmax\] expected {match}", id=id)


_refuse("k_zero", r"k in \[1, 8\], got 0", lambda make: Sample(make(3, 8), k=0))
_refuse("k_too_large", r"k in \[1, 8\], got 9", lambda make: Sample(make(3, 8), k=9))
_refuse("rank", r"x of rank 2 or 3, got \[8\]", lambda make: Sample(make(8)))
_refuse("finished", r"finished \[3\], got \[2\]", lambda make: Sample(make(3, 8), make.bools(2)))
