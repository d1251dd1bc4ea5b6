"""Cases of what ranks compute together: eagerly, in sessions, and in many pieces."""

from __future__ import annotations

from onnxruntime_npu.opdef import Maker, Sample
from op_paths import NPU, bind, eager, eager_npu, fake_call, make_model, run_session
from rank_calls import OPS, RANK, SIZE, compare, fails, group_name, of_ranks, provider_session
from rank_expectations import GROUP_ARGUMENTS


def eager_calls_equal_those_of_one_rank() -> None:
    for op in OPS.values():
        for i, dtype in enumerate(op.sample_dtypes):
            for calls, mine in of_ranks(op, dtype, group_name()):
                got = eager_npu(op, mine)
                compare(op, got, calls)
                if i == 0:
                    compare(op, eager(op, mine), calls)
                    fakes = [(tuple(f.shape), f.dtype) for f in fake_call(op, mine)]
                    assert fakes == [(tuple(g.shape), g.dtype) for g in got], op.name


def sessions_equal_calls_of_one_rank() -> None:
    for op in OPS.values():
        for dtype in op.sample_dtypes:
            for calls, mine in of_ranks(op, dtype, "world"):
                session = provider_session(make_model(op, mine, body=False))
                compare(op, run_session(session, NPU, op, mine), calls)


def many_pieces() -> None:
    """So many rows that each exchange runs beside the next product."""
    ranks = [Maker("float32", seed=rank) for rank in range(SIZE)]
    shapes = [(make(2048, 512), make(512, 1024, scale=0.04)) for make in ranks]
    for name in ("npu_mm_all_reduce_base", "npu_mm_reduce_scatter_base", "npu_all_gather_base_mm"):
        op = OPS[name]
        world = () if name == "npu_mm_all_reduce_base" else (1,)
        alone = [Sample(x1, x2, "", *world) for x1, x2 in shapes]
        mine = bind(op, alone[RANK])
        mine |= GROUP_ARGUMENTS[name](mine, group_name(), RANK, SIZE)
        # The sums of a product depend on the number of its rows: values near 1, of float32.
        compare(op, eager_npu(op, Sample.of(mine)), alone, atol=1e-5)
    experts = 2
    counts = [
        [400 + 60 * ((rank + 2 * to + j) % 3) for to in range(SIZE) for j in range(experts)]
        for rank in range(SIZE)
    ]
    calls = []
    for rank, make in enumerate(ranks):
        received = [sent[rank * experts + j] for sent in counts for j in range(experts)]
        x, weight = make(sum(counts[rank]), 512), make(experts, 512, 1024, scale=0.04)
        calls.append(Sample(x, weight, group_name(), SIZE, counts[rank], received))
    for name in ("npu_alltoallv_gmm", "npu_gmm_alltoallv"):
        compare(OPS[name], eager_npu(OPS[name], calls[RANK]), calls, atol=1e-5)


def experts_with_more_counts_than_an_agreement_tells() -> None:
    experts = 40
    counts = [
        [(rank + 2 * to + j) % 3 for to in range(SIZE) for j in range(experts)]
        for rank in range(SIZE)
    ]
    calls = []
    for rank in range(SIZE):
        make = Maker("float32", seed=rank)
        received = [sent[rank * experts + j] for sent in counts for j in range(experts)]
        x, weight = make(sum(counts[rank]), 8), make(experts, 8, 4)
        calls.append(Sample(x, weight, group_name(), SIZE, counts[rank], received))
    for name in ("npu_alltoallv_gmm", "npu_gmm_alltoallv"):
        mine = bind(OPS[name], calls[RANK])
        *others, last = mine["recv_counts"]
        wrong = Sample.of(mine | ({"recv_counts": [*others, last + 1]} if RANK == 1 else {}))
        told = f"expected rank 1 to receive from rank {SIZE - 1}, of expert {experts - 1}, the "
        fails(lambda name=name, wrong=wrong: eager_npu(OPS[name], wrong), told)
        compare(OPS[name], eager_npu(OPS[name], calls[RANK]), calls, atol=1e-5)


CASES = (
    eager_calls_equal_those_of_one_rank,
    sessions_equal_calls_of_one_rank,
    many_pieces,
    experts_with_more_counts_than_an_agreement_tells,
)
