"""Copies between host and device inside captures: those that can be replayed, and refused ones."""

import gc

import pytest
import torch
from null_backend import computed

pytestmark = pytest.mark.no_values

npu = torch.npu

ILLEGAL = {
    "to the device": lambda x: torch.ones(4).npu(),
    "to the device without waiting": lambda x: x.copy_(torch.ones(4), non_blocking=True),
    "much to the device": lambda x: torch.ones(1 << 20).npu(),
    "cpu": lambda x: x.cpu(),
    "item": lambda x: x.sum().item(),
    "to memory that is not pinned": lambda x: torch.empty(4).copy_(x, non_blocking=True),
    "numbers of a list": lambda x: torch.tensor([1.0, 2.0], device="npu"),
    "rows by a list": lambda x: x[torch.tensor([0, 2])],
}


@pytest.mark.parametrize("what", ILLEGAL)
def test_pageable_copies_are_refused_and_invalidate_the_capture(what):
    x = torch.ones(4, device="npu")
    graph = npu.NPUGraph()
    refusal = pytest.raises(RuntimeError, match="not permitted when stream is capturing")
    at_the_end = pytest.raises(RuntimeError, match="not permitted")
    with at_the_end, npu.graph(graph), refusal:
        ILLEGAL[what](x)
    ILLEGAL[what](x)
    with npu.graph(graph):
        y = x + 1
    graph.replay()
    assert y.tolist() == computed([2, 2, 2, 2])


def test_scalars_are_captured_by_value():
    x, scalar = torch.ones(4, device="npu"), torch.tensor(3.0)
    graph = npu.NPUGraph()
    with npu.graph(graph):
        y = x * scalar + 0.5
        z = torch.full((2,), 7.0, device="npu")
        z[0] = 5.0
        pairs = torch.tril_indices(2, 2, device="npu")
    scalar.fill_(100)
    graph.replay()
    assert y.tolist() == computed([3.5] * 4)
    assert z.tolist() == computed([5, 7])
    assert pairs.tolist() == computed([[0, 1, 1], [0, 0, 1]])


def test_pinned_memory_is_accessed_at_each_replay():
    source, target = torch.ones(4).pin_memory(), torch.zeros(4).pin_memory()
    graph = npu.NPUGraph()
    with npu.graph(graph):
        x = source.to("npu", non_blocking=True)
        target.copy_(x + 1, non_blocking=True)
    for value in (5.0, 6.0):
        source.fill_(value)
        graph.replay()
        npu.synchronize()
        assert target.tolist() == computed([value + 1] * 4)
    address = source.data_ptr()
    del source
    gc.collect()
    others = [torch.full((4,), -1.0).pin_memory() for _ in range(8)]
    assert all(other.data_ptr() != address for other in others)
    graph.replay()
    npu.synchronize()
    assert target.tolist() == computed([7] * 4)
