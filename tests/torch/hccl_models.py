"""Cases of models that several ranks train, and of operators on parts of tensors."""

from __future__ import annotations

import torch
import torch.distributed as dist
from hccl_case import fails
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


CASES = (
    training,
    operators_on_dtensors,
    divisions_of_operators_on_dtensors,
)
