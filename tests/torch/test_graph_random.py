"""Random numbers inside graphs: each replay draws what the captured work would have drawn."""

import pytest
import torch
import torch.nn.functional as F

npu = torch.npu


def attention(query: torch.Tensor) -> torch.Tensor:
    heads = query.shape[1]
    return torch.ops.npu.npu_fusion_attention(
        query, query, query, heads, "BNSD", scale=0.5, keep_prob=0.5
    )[0]


DRAWS = {
    "rand": lambda x: torch.rand_like(x),
    "dropout": lambda x: F.dropout(x, 0.5),
    "randint and normal": lambda x: torch.randint_like(x, 1000) + torch.randn_like(x),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "multinomial": lambda x: torch.multinomial(x[0, 0].sigmoid(), 3),
    "randperm": lambda x: torch.randperm(64, device=x.device),
    "npu_fusion_attention": attention,
    "npu_fused_attention_score": lambda x: torch.ops.npu.npu_fused_attention_score(
        x.half(), x.half(), x.half(), torch.zeros(2, 1, 1, 8, device="npu").half(), 1.0, 0.5
    ),
    "npu_dropout_with_add_softmax": lambda x: torch.ops.npu.npu_dropout_with_add_softmax(
        x, x, 1.0, 0.5, -1
    )[2],
}


def captured(function, *arguments):
    graph = npu.NPUGraph()
    with npu.graph(graph):
        result = function(*arguments)
    return graph, result


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_replays_draw_the_same_numbers_as_eager_calls(draw):
    x = torch.randn(2, 3, 8, 16, generator=torch.Generator().manual_seed(0)).npu()
    npu.manual_seed(3)
    expected = [draw(x).clone() for _ in range(3)]
    end = npu.get_rng_state()
    assert not torch.equal(expected[0], expected[1])

    npu.manual_seed(11)
    before = npu.get_rng_state()
    graph, result = captured(draw, x)
    assert torch.equal(npu.get_rng_state(), before)  # a capture draws nothing
    npu.manual_seed(3)
    for value in expected:
        graph.replay()
        torch.testing.assert_close(result, value, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(npu.get_rng_state(), end)


def test_graphs_and_eager_calls_share_the_generator():
    generator = torch.Generator("npu").manual_seed(5)
    out = torch.empty(33, device="npu")
    eager = [torch.empty_like(out).uniform_(generator=generator) for _ in range(4)]
    graph, _ = captured(lambda: out.uniform_(generator=generator))
    default = npu.get_rng_state()
    generator.manual_seed(5)
    for i in (0, 2):
        graph.replay()
        assert torch.equal(out, eager[i])
        assert torch.equal(torch.empty_like(out).uniform_(generator=generator), eager[i + 1])
    assert torch.equal(npu.get_rng_state(), default)


def test_backward_uses_the_forward_dropout_mask():
    """Also if forward and backward are in separate graphs."""
    query = torch.randn(1, 2, 8, 16, device="npu")
    ones = torch.ones_like(query)

    def step(leaf):
        out = attention(leaf)
        (gradient,) = torch.autograd.grad(out, leaf, ones)
        return out, gradient

    leaf = query.clone().requires_grad_()
    npu.manual_seed(1)
    expected = [[t.clone() for t in step(leaf)] for _ in range(3)]
    assert not torch.equal(expected[0][1], expected[1][1])
    whole, results = captured(step, leaf)
    forward, out = captured(attention, leaf)
    backward, (gradient,) = captured(lambda: torch.autograd.grad(out, leaf, ones))
    npu.manual_seed(1)
    for values in expected:
        whole.replay()
        assert all(torch.equal(a, b) for a, b in zip(results, values, strict=True))
    npu.manual_seed(1)
    for values in expected:
        forward.replay()
        backward.replay()
        assert torch.equal(out, values[0]) and torch.equal(gradient, values[1])


def test_generator_state_can_be_saved_and_set_in_a_capture():
    def draw():
        first = torch.rand(8, device="npu")
        state = npu.get_rng_state()
        second = torch.rand(8, device="npu")
        npu.set_rng_state(state)
        return first, second, torch.rand(8, device="npu"), npu.initial_seed()

    npu.manual_seed(4)
    torch.rand(3, device="npu")
    begin = npu.get_rng_state()
    *expected, seed = draw()
    after = torch.rand(8, device="npu")
    assert torch.equal(expected[1], expected[2])
    npu.set_rng_state(begin)
    graph, (*drawn, seed_in_capture) = captured(draw)
    assert torch.equal(npu.get_rng_state(), begin) and seed_in_capture == seed == 4
    for _ in range(2):
        npu.set_rng_state(begin)
        graph.replay()
        assert all(torch.equal(a, b) for a, b in zip(drawn, expected, strict=True))
        assert torch.equal(torch.rand(8, device="npu"), after)


def test_capture_refuses_a_state_not_reachable_at_replay():
    npu.manual_seed(5)
    other_seed = npu.get_rng_state()
    npu.manual_seed(4)
    earlier = npu.get_rng_state()
    torch.rand(3, device="npu")
    graph = npu.NPUGraph()
    with npu.graph(graph):
        for touch in (lambda: npu.manual_seed(5), lambda: npu.set_rng_state(other_seed)):
            with pytest.raises(RuntimeError, match="only if new seed is the same as the original"):
                touch()
        with pytest.raises(RuntimeError, match=r"expected a position of \d+ or more"):
            npu.set_rng_state(earlier)
        npu.manual_seed(4)  # the seed is unchanged
        drawn = torch.rand(8, device="npu")
    npu.manual_seed(4)
    expected = torch.rand(8, device="npu")
    npu.manual_seed(4)
    graph.replay()
    assert torch.equal(drawn, expected)


def test_recomputed_dropout_in_a_capture_matches_forward():
    def step():
        x = torch.ones(64, device="npu", requires_grad=True)
        out = torch.utils.checkpoint.checkpoint(F.dropout, x, use_reentrant=False)
        return out, torch.autograd.grad(out.sum(), x)[0]

    npu.manual_seed(6)
    graph, (out, gradient) = captured(step)
    for _ in range(2):
        graph.replay()
        assert torch.equal(out, gradient) and 0 < out.count_nonzero() < 64


def test_attention_draws_from_the_generator_of_its_device():
    query = torch.randn(1, 2, 8, 16, device="npu")
    results = []
    for seed in (1, 1, 2):
        torch.npu.manual_seed(seed)
        torch.randint(5, (1,))  # the CPU's generator is not involved
        results.append(attention(query))
    assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])
