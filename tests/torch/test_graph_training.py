"""Training inside graphs: captured steps, graphed callables with gradients, updates, events."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from null_backend import computed

npu = torch.npu


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)
    ).npu()


def test_whole_training_step_in_a_graph():
    captured, eager = model(), model()

    def batch():
        return torch.randn(6, 8, device="npu"), torch.randint(4, (6,), device="npu")

    x, y = batch()
    inputs = [batch() for _ in range(4)]

    def step(module, optimizer, x, y):
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(module(x), y)
        loss.backward()
        optimizer.step()
        return loss

    optimizers = [torch.optim.SGD(m.parameters(), 0.1, momentum=0.9) for m in (captured, eager)]
    side = npu.Stream()
    side.wait_stream(npu.current_stream())
    with npu.stream(side):
        step(captured, optimizers[0], x, y)  # the optimizer creates its state outside the capture
    npu.current_stream().wait_stream(side)
    step(eager, optimizers[1], x, y)
    graph = npu.NPUGraph()
    optimizers[0].zero_grad(set_to_none=True)
    with npu.graph(graph):
        loss = step(captured, optimizers[0], x, y)
    for new_x, new_y in inputs:
        x.copy_(new_x)
        y.copy_(new_y)
        graph.replay()
        expected = step(eager, optimizers[1], new_x, new_y)
        torch.testing.assert_close(loss.cpu(), expected.detach().cpu())
    for p, q in zip(captured.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(p.detach().cpu(), q.detach().cpu())


def test_graphed_callables_match_original_gradients():
    original = model()
    module = copy.deepcopy(original)
    sample = torch.randn(5, 8, device="npu", requires_grad=True)

    def loss_of(a, b):
        return (a * b).sum(), a.detach()

    graphed, loss = npu.make_graphed_callables(
        (module, loss_of),
        ((sample,), (torch.ones(5, 4, device="npu", requires_grad=True), sample.detach()[:, :4])),
    )
    assert graphed is module
    for _ in range(3):
        x = torch.randn(5, 8, device="npu", requires_grad=True)
        twin = x.detach().clone().requires_grad_()
        weight = torch.randn(5, 4, device="npu")
        value, seen = loss(graphed(x), weight)
        value.backward()
        expected, other = loss_of(original(twin), weight)
        expected.backward()
        assert torch.equal(value, expected) and torch.equal(seen, other)
        assert torch.equal(x.grad, twin.grad)
        for p, q in zip(module.parameters(), original.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, rtol=0, atol=0)
    with torch.no_grad():
        assert torch.equal(graphed(x), original(x))
    module.eval()
    longer = torch.randn(9, 8, device="npu")
    assert torch.equal(module(longer), original(longer))  # the original forward
    module.train()
    with pytest.raises(RuntimeError, match="as captured"):
        module(longer)


@pytest.mark.no_values
def test_graphed_callables_refuse_unsupported_modules():
    sample = (torch.ones(2, 8, device="npu"),)
    hooked = model()
    hooked.register_forward_hook(lambda *_: None)
    with pytest.raises(RuntimeError, match="hooks"):
        npu.make_graphed_callables(hooked, sample)
    buffered = model()
    buffered.register_buffer("b", torch.ones(1, device="npu", requires_grad=True))
    with pytest.raises(RuntimeError, match="requires_grad=False"):
        npu.make_graphed_callables(buffered, sample)
    with pytest.raises(RuntimeError, match="tensors only"):
        npu.make_graphed_callables(model(), (3,))
    for on_cpu, given in ((model().cpu(), (sample[0].cpu(),)), (model(), (sample[0].cpu(),))):
        with pytest.raises(RuntimeError, match="on npu, got a tensor on cpu"):
            npu.make_graphed_callables(on_cpu, given)
    with pytest.raises(RuntimeError, match="on npu, got a tensor on cpu"):
        npu.make_graphed_callables(model().cpu(), sample)
    with pytest.raises(RuntimeError, match="sample_args for 2"):
        npu.make_graphed_callables((model(), model()), (sample,))
    with (
        torch.autocast("npu", dtype=torch.bfloat16),
        pytest.raises(RuntimeError, match="cache_enabled=False"),
    ):
        npu.make_graphed_callables(model(), sample)


@pytest.mark.no_values
def test_graphed_callable_without_gradients():
    x = torch.ones(3, device="npu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as one of an empty graph
        doubled = npu.make_graphed_callables(lambda a: a + a, (x,))
    assert doubled(x).shape == x.shape and not doubled(x).requires_grad


def attend(query, keys, lengths):
    return torch.ops.npu.npu_fused_infer_attention_score(
        query,
        keys,
        keys,
        num_heads=2,
        input_layout="BNSD",
        scale=0.5,
        actual_seq_lengths_kv=lengths,
    )[0]


def test_update_changes_host_arguments_between_replays():
    query = torch.randn(2, 2, 1, 16, device="npu")
    keys = torch.randn(2, 2, 12, 16, device="npu")
    graph, plain = npu.NPUGraph(), npu.NPUGraph()
    with npu.graph(graph, auto_dispatch_capture=True):
        first = attend(query * 2, keys, [12, 12])
        second = attend(first + 1, keys, [3, 3])
        result = first + second
    for lengths in ([5, 7], [12, 1], [4, 4]):
        graph.replay()  # waits at each of the operators
        graph.update([{"actual_seq_lengths_kv": lengths}])
        a = attend(query * 2, keys, lengths)
        assert torch.equal(result, a + attend(a + 1, keys, lengths))
    graph.update([{"actual_seq_lengths_kv": [2, 2]}, {"actual_seq_lengths_kv": [9, 8]}])
    graph.replay()
    a = attend(query * 2, keys, [2, 2])
    assert torch.equal(result, a + attend(a + 1, keys, [9, 8]))
    with pytest.raises(RuntimeError, match="one for each of the 2 operators"):
        graph.update([{}] * 3)
    with pytest.raises(RuntimeError, match="no operator of the capture has an argument 'lengths'"):
        graph.update([{"lengths": [1, 1]}])
    with npu.graph(plain):
        attend(query, keys, [3, 3])
    with pytest.raises(RuntimeError, match="auto_dispatch_capture=True"):
        plain.update([{}])


def test_update_workspace_is_not_shared():
    """The workspace of an updated operator must not overlap the capture's other tensors."""
    x = torch.randn(64, 64, device="npu")
    y = torch.zeros(64, 64, device="npu")
    graph, stream = npu.NPUGraph(), npu.Stream()
    with npu.graph(graph, stream=stream):
        kept = x + 1
        npu.graph_task_group_begin(stream)
        y.copy_(x.half())
        handle = npu.graph_task_group_end(stream)
        result = kept * 2
    del kept
    for _ in range(3):
        with npu.stream(stream):
            npu.graph_task_update_begin(stream, handle)
            y.copy_(x.half())
            npu.graph_task_update_end(stream)
        others = [torch.full((64, 64), -1.0, device="npu") for _ in range(8)]
        graph.replay()
        assert torch.equal(result, (x + 1) * 2) and torch.equal(y, x.half().float())
        assert all(bool((o == -1).all()) for o in others)


@pytest.mark.no_values
def test_external_events_order_a_replay_against_other_work():
    begin, done = npu.ExternalEvent(), npu.ExternalEvent()
    x, y = torch.zeros(4, device="npu"), torch.zeros(4, device="npu")
    graph, other = npu.NPUGraph(), npu.Stream()
    npu.synchronize()
    with npu.graph(graph):
        begin.wait()
        y.copy_(x + 1)
        done.record()
    for i in range(3):
        graph.replay()
        with npu.stream(other):
            x.fill_(float(i))
            begin.record(other)
            done.wait(other)
            seen = y.clone()
            other.synchronize()
        assert seen.tolist() == computed([i + 1.0] * 4)
    npu.synchronize()


@pytest.mark.no_values
def test_wait_for_unrecorded_event_ends_when_the_device_stops():
    npu.ExternalEvent().wait(npu.Stream())
    npu.stop_device(0)
    npu.restart_device(0)
    assert torch.ones(2, device="npu").sum().item() == computed(2)
