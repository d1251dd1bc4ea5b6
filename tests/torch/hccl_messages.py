"""Cases of messages between two ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist
from hccl_case import fails, of_rank, same


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


CASES = (
    point_to_point,
    several_receipts_from_one_peer_begin_before_it_sends,
    transfers_with_one_peer_do_not_wait_for_another,
)
