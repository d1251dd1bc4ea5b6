"""Dropout of npu_fusion_attention without a seed: seed and offset of the device's generator."""

import pytest
import torch
from onnxruntime_npu import npu

ROWS, KEYS, HEADS = 5, 7, 3
NUMELS = 2 * HEADS * ROWS * KEYS
BLOCKS = (NUMELS + 3) // 4


def tensors():
    generator = torch.Generator().manual_seed(1)
    rows = (ROWS, KEYS, KEYS)
    return [torch.randn(2, HEADS, n, 8, generator=generator).npu() for n in rows]


def attend(*given, **options):
    return torch.ops.npu.npu_fusion_attention(
        *given, HEADS, "BNSD", scale=0.5, keep_prob=0.5, **options
    )


def test_seed_and_offset_are_those_of_the_generator():
    query, key, value = tensors()
    npu.manual_seed(2)
    for call in range(3):
        out, *_, seed, offset, numels = attend(query, key, value)
        assert (seed, offset, numels) == (2, call * BLOCKS, NUMELS)
        given = attend(query, key, value, seed=2, offset=call * BLOCKS)
        assert torch.equal(out, given[0]) and given[4:] == (seed, offset, numels)
    assert npu.default_generators[0].get_offset() == 3 * BLOCKS


def test_generator_is_restored_and_shared():
    query, key, value = tensors()
    torch.manual_seed(7)  # of all devices
    torch.rand(10, device="npu")
    state = npu.get_rng_state()
    first = attend(query, key, value)
    drawn = torch.rand(4, device="npu")
    assert first[4] == 7 and first[5] > 0
    npu.set_rng_state(state)
    again = attend(query, key, value)
    assert torch.equal(again[0], first[0]) and again[4:] == first[4:]
    assert torch.equal(torch.rand(4, device="npu"), drawn)


@pytest.mark.parametrize("seed", [0, 2**63 - 1, 2**63, 2**64 - 1])
def test_every_seed_of_a_generator_drops_and_is_differentiable(seed):
    given = [t.requires_grad_() for t in tensors()]
    npu.manual_seed(seed)
    out, *_, drawn, offset, _ = attend(*given)
    weight = torch.randn(out.shape).npu()
    gradients = torch.autograd.grad((out * weight).sum(), given)
    again = attend(*given, seed=drawn, offset=offset)[0]
    assert drawn != 0 and torch.equal(out, again)
    assert not torch.equal(out, attend(*given, seed=drawn, offset=offset + 1)[0])
    for got, want in zip(
        gradients, torch.autograd.grad((again * weight).sum(), given), strict=True
    ):
        assert torch.equal(got, want)


@pytest.mark.parametrize("seed", [0, 5])
def test_replays_draw_as_the_generator_stands(seed):
    query, key, value = tensors()
    leaf = query.detach().requires_grad_()

    def step():
        out = attend(leaf, key, value)[0]
        return out, torch.autograd.grad(out.square().sum(), leaf)[0]

    npu.manual_seed(seed)
    expected = [step() for _ in range(3)]
    side = npu.Stream()
    with npu.stream(side):
        step()
    side.synchronize()
    graph = npu.NPUGraph()
    with npu.graph(graph):
        results = step()
    npu.manual_seed(seed)
    for wanted in expected:
        graph.replay()
        for got, want in zip(results, wanted, strict=True):
            assert torch.equal(got, want)
    assert attend(query, key, value)[5] == 3 * BLOCKS
