"""What each rank of test_process_group.py does; prints the outcome of each case as JSON.

Run as ``python -m torch.distributed.run --nproc-per-node N collectives.py``. The expected values
are computed from the ranks' numbers, without a collective.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
import traceback
from collections.abc import Callable

import onnxruntime_npu
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

CASES: dict[str, Callable[[int, int], None]] = {}
NUMBERS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
NUMBERS += [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
MOVED = [torch.float32, torch.bfloat16, torch.bool, torch.int16, torch.complex64]
MOVED += [torch.float8_e4m3fn]


def case(function: Callable[[int, int], None]) -> Callable[[int, int], None]:
    CASES[function.__name__] = function
    return function


def of_rank(rank: int, dtype: torch.dtype = torch.float32, rows: int = 2) -> torch.Tensor:
    """Different numbers for each rank that every dtype has."""
    return (torch.arange(rows * 3).reshape(rows, 3) % 2 + rank).to(dtype)


def same(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert got.device.type == "npu"
    assert torch.equal(got.cpu().view(torch.uint8), expected.contiguous().view(torch.uint8)), (
        got,
        expected,
    )


def fails(call: Callable[[], object], *parts: str) -> None:
    try:
        call()
    except (RuntimeError, ValueError) as error:
        assert all(part in str(error) for part in parts), str(error)
    else:
        raise AssertionError(f"expected an error with {parts}")


@case
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


@case
def averages(rank, size):
    x = of_rank(rank).npu()
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    mean = torch.stack([of_rank(i) for i in range(size)]).mean(0)
    same(x, mean)
    part = torch.empty(2, 3, device="npu")
    dist.reduce_scatter_single(part, of_rank(rank, rows=2 * size).npu(), op=dist.ReduceOp.AVG)
    whole = torch.stack([of_rank(i, rows=2 * size) for i in range(size)]).mean(0)
    same(part, whole[2 * rank : 2 * rank + 2])


@case
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


@case
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


@case
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


@case
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


@case
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


@case
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


@case
def point_to_point(rank, size):
    x, got = of_rank(rank).npu(), torch.empty(2, 3, device="npu")
    ring = [
        dist.P2POp(dist.isend, x, (rank + 1) % size),
        dist.P2POp(dist.irecv, got, (rank - 1) % size),
    ]
    for work in dist.batch_isend_irecv(ring):
        work.wait()
    same(got, of_rank((rank - 1) % size))
    # A rank may be among its own peers, and the order of its calls is free.
    peers, sent = range(size), [torch.full((rank + 1, 2), float(i)).npu() for i in range(size)]
    received = [torch.empty(i + 1, 2, device="npu") for i in peers]
    calls = [dist.P2POp(dist.irecv, received[i], i) for i in peers]
    calls += [dist.P2POp(dist.isend, sent[i], i) for i in peers]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    for i in peers:
        same(received[i], torch.full((i + 1, 2), float(rank)))
    larger = torch.empty(4, 3, device="npu")
    calls = [dist.P2POp(dist.isend, x, rank), dist.P2POp(dist.irecv, larger, rank)]
    sending, receiving = dist.batch_isend_irecv(calls)
    sending.wait()
    fails(receiving.wait, "expected 12 elements", "got 6", f"from rank {rank}")
    if rank == 0:
        dist.send(x, 1, tag=3)
        fails(lambda: dist.recv(got, src=1), "expected 6 elements", "got 2 elements", "rank 1")
    elif rank == 1:
        source = dist.recv(got, tag=3)  # from any rank
        assert source == 0
        same(got, of_rank(0))
        dist.send(torch.zeros(2, device="npu"), 0)  # its receiver refuses it
        dist.send(torch.zeros(6, device="npu"), 0)
    if rank == 0:
        dist.recv(got, src=1)
        same(got.view(-1), torch.zeros(6))


@case
def several_receipts_from_one_peer_begin_before_it_sends(rank, size):
    sizes = [500, 1, 2000, 3]
    works, got = [], [torch.empty(n, device="npu") for n in sizes]
    if rank == 0:
        works = [dist.irecv(x, 1) for x in got]
    torch.npu.synchronize()
    dist.barrier()
    if rank == 1:
        works = [dist.isend(torch.full((n,), float(n)).npu(), 0) for n in sizes]
    for work in works:
        work.wait()
    if rank == 0:
        for x, n in zip(got, sizes, strict=True):
            same(x, torch.full((n,), float(n)))
        fails(lambda: dist.isend(got[0], 1, tag=2**30), "tag below 1073741824", "got 1073741824")


@case
def transfers_with_one_peer_do_not_wait_for_another(rank, size):
    """Rank 1 answers what rank 0 sends after it has talked to itself."""
    x, own, got = of_rank(rank).npu(), torch.empty(2, 3, device="npu"), torch.empty(5, device="npu")
    if rank == 0:
        receipt, sending = dist.irecv(got, 1), dist.isend(torch.zeros(7).npu(), 1, tag=1)
        receiving, handing = dist.irecv(own, 0), dist.isend(x, 0)
        handing.wait()
        receiving.wait()
        same(own, of_rank(0))
        last = dist.isend(x, 1)
        for work in (receipt, sending, last):
            work.wait()
        same(got, torch.full((5,), 5.0))
    elif rank == 1:
        dist.recv(own, 0)
        dist.recv(torch.empty(7, device="npu"), 0, tag=1)
        dist.send(torch.full((5,), 5.0).npu(), 0)


@case
def calls_return_before_their_inputs_are_computed(rank, size):
    stream, gate = torch.npu.Stream(), torch.npu.ExternalEvent()
    with torch.npu.stream(stream):
        gate.wait()
        x = of_rank(rank).npu()
        x += 1
        work = dist.all_reduce(x, async_op=True)
        assert not work.is_completed() and not stream.query()
        gate.record(torch.npu.default_stream())
        work.wait()
        y = x * 2  # behind the results
        y_host = y.cpu()
    assert torch.equal(y_host, 2 * sum(of_rank(i) + 1 for i in range(size)))
    assert work.is_completed() and work.is_success()
    (result,) = work.get_future().wait()
    assert result.data_ptr() == x.data_ptr()


@case
def callbacks_that_wait_for_collectives(rank, size):
    def summed(future):
        (x,) = future.value()
        inner = dist.all_reduce(x, async_op=True).get_future()
        return inner.then(lambda future: again(future.value()[0])).wait()

    def again(x):
        return dist.all_reduce(x, async_op=True).get_future().wait()[0]

    begun = [
        dist.all_reduce(of_rank(rank).npu() + i, async_op=True).get_future().then(summed)
        for i in range(3)
    ]
    for i, future in enumerate(begun):
        same(future.wait(), size * size * sum(of_rank(j) + i for j in range(size)))


@case
def tensors_of_inference(rank, size):
    kept = of_rank(rank).npu()
    with torch.inference_mode():
        made = kept + 0
        whole = torch.empty(2 * size, 3, device="npu")
        for x in (made, kept):
            dist.all_reduce(x)
            same(x, sum(of_rank(i) for i in range(size)))
        dist.all_gather_into_tensor(whole, of_rank(rank).npu())
        same(whole, torch.cat([of_rank(i) for i in range(size)]))
    (2 * kept.requires_grad_()).sum().backward()


@case
def groups_and_objects(rank, size):
    pair = dist.new_group([0, 1])
    x = of_rank(rank).npu()
    if rank < 2:
        dist.all_reduce(x, group=pair)
        same(x, of_rank(0) + of_rank(1))
    everyone = [None] * size
    dist.all_gather_object(everyone, {"rank": rank})
    assert everyone == [{"rank": i} for i in range(size)]
    dist.barrier()
    names = [None] * size
    world = dist.distributed_c10d._get_default_group()._get_backend(torch.device("npu"))
    assert world.get_hccl_comm_name(rank, init_comm=False) == ""  # nobody has asked before
    dist.all_gather_object(names, world.get_hccl_comm_name(rank))
    assert world.get_hccl_comm_name(rank, init_comm=False) == names[0]
    assert len(set(names)) == 1 and isinstance(names[0], str)


@case
def names_of_groups(rank, size):
    device, distributed = torch.device("npu"), onnxruntime_npu.distributed
    assert distributed.is_hccl_available() and distributed._is_support_hccl_comm_name()
    group = dist.new_group()
    backend = group._get_backend(device)
    for refused in ("", "0" * 128):
        fails(lambda name=refused: backend._set_hccl_comm_name(name), "of 1 to 127 bytes")
    for _ in range(2):
        backend._set_hccl_comm_name("renamed")
    fails(lambda: backend._set_hccl_comm_name("another"), "has the name 'renamed'")
    assert backend.get_hccl_comm_name(rank) == "renamed"
    x, weight = torch.ones(2, 8, device="npu"), torch.ones(8, 4, device="npu")
    y = torch.ops.npu.npu_mm_all_reduce_base(x, weight, "renamed")
    same(y, torch.full((2, 4), 8.0 * size))
    other = dist.new_group()._get_backend(device)
    name = other.get_hccl_comm_name(rank)
    fails(lambda: other._set_hccl_comm_name("late"), f"has the name '{name}'")


@case
def wrong_calls_are_errors_on_every_rank(rank, size):
    x = torch.ones(10 if rank == 1 else 1000, device="npu")
    refusal = ["[hccl] all_reduce", "the same call on all ranks", "1000 elements", "10 elements"]
    fails(lambda: dist.all_reduce(x), *refusal)
    x = torch.ones(4, device="npu", dtype=torch.float16 if rank == 1 else torch.float32)
    fails(lambda: dist.all_reduce(x), "Half", "Float")
    op = dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM
    fails(lambda: dist.all_reduce(torch.ones(4, device="npu"), op=op), "the same call")
    y = torch.empty(size + 1 if rank == 1 else size, device="npu")
    sizes = [1] * (size - 1) + [2 if rank == 1 else 1]
    x = torch.ones(size, device="npu")
    fails(lambda: dist.all_to_all_single(y, x, sizes, [1] * size), "expected rank 1 to receive")
    # The same on every rank.
    fails(lambda: dist.all_to_all_single(y, x, [7] * size, [1] * size), "expected sizes from 0")
    fails(lambda: dist.all_gather_single(torch.empty(3 * size, device="npu"), x), "expected")
    fails(lambda: dist.all_reduce(x.to(torch.float8_e4m3fn)), "floats of 16 bits or more")
    fails(lambda: dist.all_reduce(torch.ones(3)), "cpu")
    dist.all_reduce(x)  # the group is as good as before
    same(x, torch.full((size,), float(size)))


@case
def training(rank, size):
    def new_model():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 16), nn.LayerNorm(16), nn.Linear(16, 4)
        ).npu()

    torch.manual_seed(1)
    x, y = torch.randn(4, 8, 8), torch.randint(0, 4, (4, 8))

    def losses(model, x, y, **options):
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2, **options)
        values = []
        for batch, target in zip(x, y, strict=True):
            loss = nn.functional.cross_entropy(model(batch.npu()), target.npu())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            values.append(loss.detach())
        return torch.stack(values)

    def check(got):
        # Sums in another order; the losses are about 1.
        torch.testing.assert_close(got.cpu(), expected, atol=2e-6, rtol=0)

    expected = losses(new_model(), x, y).cpu()
    share = [part.chunk(size, 1)[rank] for part in (x, y)]
    mean = losses(DistributedDataParallel(new_model()), *share)
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    check(mean)
    mesh = init_device_mesh("npu", (size,))
    model = new_model()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    mean = losses(fully_shard(model, mesh=mesh), *share)
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    check(mean)
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    check(losses(parallelize_module(new_model(), mesh, plan), x, y, foreach=False))


def on_dtensors(op, args, placement, mesh, needs):
    """Compare a call and its gradients with the whole's."""
    whole = [a.detach().requires_grad_(needs) if torch.is_tensor(a) else a for a in args]
    parts = [
        distribute_tensor(a.detach(), mesh, [placement if a.dim() > 2 else Replicate()])
        if torch.is_tensor(a)
        else a
        for a in args
    ]
    parts = [a.requires_grad_(needs) if torch.is_tensor(a) else a for a in parts]
    expected, got = op(*whole), op(*parts)
    expected, got = ([y] if torch.is_tensor(y) else y for y in (expected, got))
    pairs = list(zip(expected, got, strict=True))
    if needs:
        expected[0].square().sum().backward()
        got[0].full_tensor().square().sum().backward()
        pairs += [(a.grad, b.grad) for a, b in zip(whole, parts, strict=True) if torch.is_tensor(a)]
    for want, y in pairs:
        if torch.is_tensor(want):
            torch.testing.assert_close(y.full_tensor().cpu(), want.detach().cpu())


@case
def operators_on_dtensors(rank, size):
    mesh, ops = init_device_mesh("npu", (size,)), torch.ops.npu
    torch.manual_seed(0)
    x, gamma = torch.randn(size, 2 * size, 8).npu(), torch.randn(8).npu()
    lengths = [None] * 3 + [1.0, 1.0, 2147483647, 2147483647, 0, None, [size], [size]]
    numbers = [[1, 1], [1, 0], [1, 1], 1]
    calls = [
        (ops.npu_rms_norm, x, gamma),
        (ops.npu_swiglu, x),
        (ops.npu_fast_gelu, x),
        (ops.npu_rotary_mul, x[None], x[None, :1].cos(), x[None, :1].sin()),
        (ops.npu_bmmV2, x, x.transpose(1, 2).contiguous(), []),
        (ops.npu_transpose, x, [2, 0, 1]),
        (ops.npu_conv2d, x[None], torch.randn(2 * size, size, 2, 3).npu(), None, *numbers),
        (ops.npu_fusion_attention, x, x + 1, x - 1, 4, "SBH"),
        (ops.npu_fusion_attention, x[None], x[None] + 1, x[None] - 1, size, "BNSD"),
        (ops.npu_fusion_attention, x, x + 1, x - 1, 2 * size, "TND", *lengths),
    ]
    for op, *args in calls:
        last = args[0].dim() - 1
        for placement in (Shard(0), Shard(1), Shard(2), Shard(last), Replicate()):
            if isinstance(placement, Shard) and args[0].shape[placement.dim] % size:
                continue
            for needs in (False, True):
                on_dtensors(op.default, args, placement, mesh, needs)


@case
def divisions_of_operators_on_dtensors(rank, size):
    mesh, ops = init_device_mesh("npu", (size,)), torch.ops.npu
    x = torch.randn(2 * size, 4 * size).npu()
    columns = distribute_tensor(x, mesh, [Shard(1)])
    # Parts that need no communication give parts, also without gradients.
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        with mode():
            assert ops.npu_fast_gelu(columns).placements == (Shard(1),)
    heads = [distribute_tensor(torch.randn(2, 3, 8).npu(), mesh, [Shard(2)]) for _ in range(3)]
    assert ops.npu_fusion_attention(*heads, size, "BSH")[0].placements == (Shard(2),)
    # In operators that communicate, whatever the placements were.
    weight = torch.randn(4 * size, 2 * size).npu()
    name = mesh.get_group()._get_backend(torch.device("npu")).get_hccl_comm_name(rank)
    for placement in (Shard(0), Shard(1), Replicate()):
        right = distribute_tensor(weight, mesh, [placement])
        for y in (
            ops.npu_mm_all_reduce_base(columns, right, name),
            ops.npu_mm_reduce_scatter_base(columns, right, name, size),
            ops.npu_all_gather_base_mm(columns, right, name, size)[0],
        ):
            torch.testing.assert_close(y.full_tensor().cpu(), (x @ weight).cpu())
    told = "[npu_mm_all_reduce_base] expected DTensors only, got a plain tensor, too"
    fails(lambda: ops.npu_mm_all_reduce_base(columns, weight, name), told)


@case
def a_rank_that_ends_is_named(rank, size):  # the last case: the group is lost
    dist.barrier()
    if rank == 1:
        return
    x = torch.ones(4, device="npu")
    fails(lambda: dist.all_reduce(x), f"[hccl] all_reduce on rank {rank} of {size}", "from rank 1")
    fails(lambda: dist.broadcast(x, 0), f"[hccl] broadcast on rank {rank}", "from rank 1")
    same(x + 1, torch.full((4,), 2.0))  # the device is as good as before


def main() -> None:
    onnxruntime_npu.torch_device.register()
    dist.init_process_group("hccl", timeout=datetime.timedelta(seconds=60))
    rank, size = dist.get_rank(), dist.get_world_size()
    for name, function in CASES.items():
        try:
            function(rank, size)
            outcome = ""
        except Exception:
            outcome = traceback.format_exc()
        line = json.dumps({"case": name, "rank": rank, "outcome": outcome}) + "\n"
        os.write(sys.stdout.fileno(), line.encode())  # at once, between those of other ranks
    os._exit(0)  # without a farewell to the group, as a rank that dies


if __name__ == "__main__":
    main()
