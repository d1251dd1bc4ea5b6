"""Cases of calls: when they return, the tensors that they take, their groups, and refusals."""

from __future__ import annotations

import onnxruntime_npu
import torch
import torch.distributed as dist
from hccl_case import fails, of_rank, same


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


CASES = (
    calls_return_before_their_inputs_are_computed,
    callbacks_that_wait_for_collectives,
    tensors_of_inference,
    groups_and_objects,
    names_of_groups,
    wrong_calls_are_errors_on_every_rank,
)
