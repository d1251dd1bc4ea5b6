"""LSTM and GRU, and their gradients."""

import pytest
import torch


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_recurrent_layers_and_gradients(kind):
    cpu = getattr(torch.nn, kind)(5, 4, num_layers=2, bidirectional=True)
    npu = getattr(torch.nn, kind)(5, 4, num_layers=2, bidirectional=True)
    npu.load_state_dict(cpu.state_dict())
    npu.npu()
    x = torch.randn(3, 2, 5)
    expected, got = cpu(x)[0], npu(x.npu())[0]
    torch.testing.assert_close(got.cpu(), expected)
    (expected.sin()).sum().backward()
    (got.sin()).sum().backward()
    for (name, e), g in zip(cpu.named_parameters(), npu.parameters(), strict=True):
        # Sums of float32 over steps, in another order.
        torch.testing.assert_close(g.grad.cpu(), e.grad, rtol=1e-5, atol=5e-6, msg=name)
