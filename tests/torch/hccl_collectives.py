"""Cases of collectives: what each rank gets is computed from the ranks' numbers alone."""

from __future__ import annotations

import onnxruntime_npu
import torch
import torch.distributed as dist
from hccl_case import fails, of_rank, same

NUMBERS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
NUMBERS += [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
MOVED = [torch.float32, torch.bfloat16, torch.bool, torch.int16, torch.complex64]
MOVED += [torch.float8_e4m3fn]


def all_reduce(rank, size):
    for dtype in NUMBERS:
        ranks = [of_rank(i, dtype) for i in range(size)]
        for op, expected in [
            (dist.ReduceOp.SUM, sum(ranks)),
            (dist.ReduceOp.MAX, ranks[-1]),
            (dist.ReduceOp.MIN, ranks[0]),
            (dist.ReduceOp.PRODUCT, torch.stack(ranks).prod(0).to(dtype)),
        ]:
            x = of_rank(rank, dtype).npu()
            dist.all_reduce(x, op=op)
            same(x, expected)
    x = torch.tensor([rank == 0, False]).npu()
    dist.all_reduce(x)
    same(x, torch.tensor([True, False]))
    strided = torch.zeros(3, 4, device="npu").t()[:2]
    strided += rank
    dist.all_reduce(strided)
    same(strided.contiguous(), torch.full((2, 3), float(sum(range(size)))))
    empty = torch.empty(0, 3, device="npu")
    dist.all_reduce(empty)


def averages(rank, size):
    x = of_rank(rank).npu()
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    mean = torch.stack([of_rank(i) for i in range(size)]).mean(0)
    same(x, mean)
    part = torch.empty(2, 3, device="npu")
    dist.reduce_scatter_single(part, of_rank(rank, rows=2 * size).npu(), op=dist.ReduceOp.AVG)
    whole = torch.stack([of_rank(i, rows=2 * size) for i in range(size)]).mean(0)
    same(part, whole[2 * rank : 2 * rank + 2])


def factors_of_terms(rank, size):
    total = sum(of_rank(i) for i in range(size)) / 4
    for factor in (0.25, torch.tensor([0.25]).npu()):
        op = dist._make_nccl_premul_sum(factor)
        x = of_rank(rank).npu()
        dist.all_reduce(x, op=op)
        same(x, total)
        part = torch.empty(1, 3, device="npu")
        dist.reduce_scatter_single(part, of_rank(rank, rows=size).npu(), op=op)
        same(part, sum(of_rank(i, rows=size) for i in range(size))[rank : rank + 1] / 4)
        x = of_rank(rank).npu()
        dist.reduce(x, dst=1, op=op)
        same(x, total if rank == 1 else of_rank(rank))
    integers = torch.ones(2, dtype=torch.int32, device="npu")
    fails(lambda: dist.all_reduce(integers, op=op), "expected floats", "got Int")


def parts_of_several_sizes(rank, size):
    parts = [torch.empty(i + 1, 3, dtype=torch.bfloat16, device="npu") for i in range(size)]
    dist.all_gather(parts, of_rank(rank, torch.bfloat16, rank + 1).npu())
    for i, part in enumerate(parts):
        same(part, of_rank(i, torch.bfloat16, i + 1))
    for op, expected in [(dist.ReduceOp.SUM, sum), (dist.ReduceOp.MAX, lambda all: all[-1])]:
        part = torch.empty(rank + 1, 3, device="npu")
        dist.reduce_scatter(part, [of_rank(rank, rows=i + 1).npu() for i in range(size)], op=op)
        same(part, expected([of_rank(i, rows=rank + 1) for i in range(size)]))
    premul, average = onnxruntime_npu.distributed._make_hccl_premul_sum(0.5), dist.ReduceOp.AVG
    gather = onnxruntime_npu.distributed.all_gather_into_tensor_uneven
    reduce_scatter = onnxruntime_npu.distributed.reduce_scatter_tensor_uneven
    sizes = [i % 3 for i in range(size)]  # some ranks have nothing
    for splits in (sizes, None):
        rows = [2] * size if splits is None else splits
        whole = torch.empty(sum(rows), 3, device="npu")
        work = gather(whole, of_rank(rank, rows=rows[rank]).npu(), splits, async_op=True)
        work.wait()
        same(whole, torch.cat([of_rank(i, rows=rows[i]) for i in range(size)]))
        terms = [of_rank(i, rows=sum(rows)) for i in range(size)]
        total = sum(terms).split(rows)[rank]
        for op, scale in ((dist.ReduceOp.SUM, 1), (average, 1 / size), (premul, 0.5)):
            part = torch.empty(rows[rank], 3, device="npu")
            reduce_scatter(part, terms[rank].npu(), splits, op)
            assert torch.allclose(part.cpu(), total * scale)
    alone = dist.new_group([0])
    if rank == 0:
        whole = torch.empty(2, 3, device="npu")
        gather(whole, of_rank(0).npu(), [2], alone)
        same(whole, of_rank(0))
    else:
        assert gather(whole, of_rank(0).npu(), [2], alone) is None  # as torch's own, it warns
    few = [1] * (size - 1)
    told = f"expected {size} sizes that add up to {len(whole)}, the first dimension of the "
    fails(lambda: gather(whole, of_rank(0).npu(), few), f"{told}output, got {few}")
    fails(lambda: reduce_scatter(part, whole, few), f"{told}input, got {few}")
    odd = torch.empty(size + 1, device="npu")
    fails(lambda: reduce_scatter(part, odd), f"that {size} ranks divide, got {size + 1}")
    terms = [of_rank(i, rows=2 * size) for i in range(size)]
    whole = sum(terms)[2 * rank : 2 * rank + 2]
    for rows in (2 * size, 1):  # one tensor for all ranks, and two for each
        part = torch.empty(2, 3, device="npu")
        dist.reduce_scatter(part, list(terms[rank].npu().split(rows)))
        same(part, whole)
    few = [torch.ones(2, 3, device="npu")] * (size - 1)
    fails(lambda: dist.reduce_scatter(part, few), f"expected {size} tensors, one of each rank")
    wrong = [torch.empty(i + 2, device="npu") for i in range(size)]
    x = torch.ones(rank + 1, device="npu")
    fails(lambda: dist.all_gather(wrong, x), f"expected a tensor of {rank + 1} elements for rank")


def calls_that_are_coalesced(rank, size):
    device, whole = torch.device("npu"), sum(of_rank(i) for i in range(size))
    for options in ({}, {"device": device}):
        terms = [of_rank(rank).npu() for _ in range(3)]
        with dist._coalescing_manager(**options):
            for x in terms:
                dist.all_reduce(x)
        for x in terms:
            same(x, whole)
        wholes = [torch.empty(2 * size, 3, device="npu") for _ in range(2)]
        with dist._coalescing_manager(**options, async_ops=True) as coalesced:
            for x in wholes:
                dist.all_gather_single(x, of_rank(rank).npu())
        coalesced.wait()
        for x in wholes:
            same(x, torch.cat([of_rank(i) for i in range(size)]))
    backend = dist.distributed_c10d._get_default_group()._get_backend(device)
    terms = [of_rank(rank).npu() for _ in range(3)]
    received = torch.empty(2, 3, device="npu")
    backend._group_start()
    works = [dist.all_reduce(x, async_op=True) for x in terms]
    works.append(dist.isend(of_rank(rank).npu(), (rank + 1) % size))
    works.append(dist.irecv(received, (rank - 1) % size))
    backend._group_end()
    works[0].wait()
    assert all(work.is_completed() for work in works)
    for x in terms:
        same(x, whole)
    same(received, of_rank((rank - 1) % size))
    fails(backend._group_end, "expected a start of coalescing before its end")
    received = torch.empty(2, 3, device="npu")
    with dist._coalescing_manager(device=device, async_ops=True) as coalesced:
        dist.isend(of_rank(rank).npu(), (rank + 1) % size)
        dist.irecv(received, (rank - 1) % size)
        dist.broadcast(broadcast := of_rank(rank).npu(), src=1)
    (work,) = coalesced.works
    assert len(work.get_future().wait()) == (1 if rank == 1 else 2)  # a root receives nothing
    work.wait()
    same(received, of_rank((rank - 1) % size))
    same(broadcast, of_rank(1))


def gathers(rank, size):
    for dtype in MOVED:
        x = of_rank(rank, dtype).npu()
        parts = [torch.empty_like(x) for _ in range(size)]
        dist.all_gather(parts, x)
        for i, part in enumerate(parts):
            same(part, of_rank(i, dtype))
        whole = torch.empty(2 * size, 3, dtype=dtype, device="npu")
        dist.all_gather_single(whole, x)
        same(whole, torch.cat([of_rank(i, dtype) for i in range(size)]))
        parts = [torch.empty_like(x) for _ in range(size)]
        dist.gather(x, parts if rank == 1 else None, dst=1)
        for i, part in enumerate(parts if rank == 1 else []):
            same(part, of_rank(i, dtype))


def scatters(rank, size):
    for dtype in MOVED:
        x = torch.empty(2, 3, dtype=dtype, device="npu")
        parts = [of_rank(i, dtype).npu() for i in range(size)]
        dist.scatter(x, parts if rank == 0 else None, src=0)
        same(x, of_rank(rank, dtype))
        x = of_rank(rank, dtype).npu()
        dist.broadcast(x, src=1)
        same(x, of_rank(1, dtype))
    inputs = [of_rank(rank + i).npu() for i in range(size)]
    x = torch.empty(2, 3, device="npu")
    dist.reduce_scatter(x, inputs)
    same(x, sum(of_rank(rank + i) for i in range(size)))
    x = of_rank(rank).npu()
    dist.reduce(x, dst=1)
    same(x, sum(of_rank(i) for i in range(size)) if rank == 1 else of_rank(rank))


def all_to_all(rank, size):
    for dtype in MOVED:
        x = torch.cat([of_rank(10 * rank + i, torch.float32) for i in range(size)])
        got = torch.empty_like(x, device="npu", dtype=dtype)
        dist.all_to_all_single(got, x.to(dtype).npu())
        same(got, torch.cat([of_rank(10 * i + rank) for i in range(size)]).to(dtype))
    # Rank r sends i rows to rank i: each receives as many rows from everybody.
    rows = [torch.full((i, 2), 10.0 * rank + i) for i in range(size)]
    got = torch.empty(rank * size, 2, device="npu")
    dist.all_to_all_single(got, torch.cat(rows).npu(), [rank] * size, list(range(size)))
    expected = [torch.full((rank, 2), 10.0 * i + rank) for i in range(size)]
    same(got, torch.cat(expected))
    parts = [torch.empty(rank, 2, device="npu") for _ in range(size)]
    dist.all_to_all(parts, [row.npu() for row in rows])
    for part, row in zip(parts, expected, strict=True):
        same(part, row)


CASES = (
    all_reduce,
    averages,
    factors_of_terms,
    parts_of_several_sizes,
    calls_that_are_coalesced,
    gathers,
    scatters,
    all_to_all,
)
