"""Complex numbers: conjugates and gradients."""

import torch
from against_cpu import equal_on_cpu


def test_conjugate_and_negative_views_are_copied():
    x = torch.randn(3, 4, dtype=torch.complex64)
    n = x.npu()
    assert torch.equal(n.conj().cpu(), x.conj())
    assert torch.equal(n.conj().clone().cpu(), x.conj())
    assert torch.equal(n.conj().imag.clone().cpu(), x.conj().imag)
    assert torch.equal(x.conj().npu().cpu(), x.conj())
    n.conj().copy_(x.npu())
    assert torch.equal(n.cpu(), x.conj())
    equal_on_cpu(lambda t: t.conj() * t, x)


def test_complex_gradients():
    def gradient(size, angle):
        size, angle = size.requires_grad_(), angle.requires_grad_()
        torch.polar(size, angle).real.sum().backward()
        return size.grad, angle.grad

    equal_on_cpu(gradient, torch.rand(3), torch.rand(3))


def test_conjugates_in_memory():
    x = torch.randn(3, 4, dtype=torch.complex64)
    equal_on_cpu(torch.conj_physical, x)
    equal_on_cpu(lambda t: torch.conj_physical(t.conj()), x)
    equal_on_cpu(lambda t: t.clone().conj_physical_(), x)
    equal_on_cpu(lambda t: t.clone().t()[1:].conj_physical_(), x)
    equal_on_cpu(lambda t: torch.conj_physical(t, out=torch.empty_like(t).t().contiguous().t()), x)
    equal_on_cpu(lambda t: t.real.contiguous().conj_physical_(), x)
    equal_on_cpu(lambda t: t.mH.resolve_conj(), x)
