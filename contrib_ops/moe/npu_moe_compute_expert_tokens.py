"""The number of rows up to each expert. Source: torch_npu.npu_moe_compute_expert_tokens."""

from onnxruntime_npu.opdef import Sample, check, npu_op, torch

from ._rows import MAX_EXPERTS, check_rows

op = npu_op(
    "npu_moe_compute_expert_tokens(Tensor sorted_expert_for_source_row, int num_expert) -> Tensor",
    onnx="NPUMoeComputeExpertTokens",
    attribute_names={"num_expert": "num_experts"},
    dtypes={"sorted_expert_for_source_row": ["int32"], "y": ["int32"]},
)


@op.reference
def reference(sorted_expert_for_source_row, num_expert):
    """y[e] = how many rows have an expert of at most e.

    sorted_expert_for_source_row: [N] int32, experts in any order, sorted by
    npu_moe_init_routing; those of num_expert and above, of finished tokens, are in no count;
    num_expert: in [1, 10240]; y: [num_expert] int32.
    """
    experts = sorted_expert_for_source_row
    name = "npu_moe_compute_expert_tokens"
    check(
        experts.dim() == 1,
        f"[{name}] expected sorted_expert_for_source_row [N], got {list(experts.shape)}",
    )
    check(
        1 <= num_expert <= MAX_EXPERTS,
        f"[{name}] expected num_expert in [1, {MAX_EXPERTS}], got {num_expert}",
    )
    check_rows(name, experts.shape[0])
    below = experts[:, None] <= torch.arange(num_expert, device=experts.device)
    return below.sum(0).to(torch.int32)


@op.function
def body(b, call, experts):
    numbers = b.const(range(call.attrs["num_experts"]), "int32")
    below = b.LessOrEqual(b.Unsqueeze(experts, [0]), b.Unsqueeze(numbers, [1]))
    return b.Reshape(
        b.ReduceSum(b.Cast(below, to="int32"), [1], keepdims=0), [call.attrs["num_experts"]]
    )


@op.samples
def samples(make):
    def experts(*shape, high):
        return make.ints(*shape, high=high, dtype="int32").sort().values

    yield Sample(make.tensor([0, 0, 1, 3, 3]), 4, id="catalogue", expect=[[2, 3, 3, 5]])
    yield Sample(make.tensor([1, 1, 2, 2]), 2, id="finished", expect=[[0, 2]])
    yield Sample(make.tensor([-5, 0, 2**31 - 1]), 1, id="outside", expect=[[2]])
    yield Sample(experts(100, high=16), 16)
    yield Sample(experts(60000, high=300), 300, id="threads")
    yield Sample(experts(7, high=2000), 2048, id="more_experts_than_rows")
    yield Sample(make.ints(33, high=9, dtype="int32"), 8, id="not_sorted")
    yield Sample(make.ints(0, dtype="int32"), 3, id="no_rows", expect=[[0, 0, 0]])
    yield Sample(experts(40, high=9)[::2], 8, id="not_contiguous")


op.errors(
    lambda make: Sample(make(3, 4), 4),
    match=r"\[npu_moe_compute_expert_tokens\] expected sorted_expert_for_source_row \[N\], "
    r"got \[3, 4\]",
    id="rank",
)
op.errors(
    lambda make: Sample(make(3), 0),
    match=r"\[npu_moe_compute_expert_tokens\] expected num_expert in \[1, 10240\], got 0",
    id="no_experts",
)
op.errors(
    lambda make: Sample(make(3), 10241),
    match=r"\[npu_moe_compute_expert_tokens\] expected num_expert in \[1, 10240\], got 10241",
    id="too_many_experts",
)
