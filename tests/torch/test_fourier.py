"""Fourier transforms, of real and of complex numbers, and their gradients."""

import pytest
import torch
from against_cpu import equal_on_cpu

pytestmark = pytest.mark.usefixtures("no_fallback")

fft = torch.fft
NORMS = pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
REAL = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


@NORMS
@REAL
def test_transforms(dtype, norm):
    x = torch.randn(3, 6, 5, dtype=dtype)
    z = torch.complex(x, x.flip(0))
    for function in (fft.fft, fft.ifft):
        equal_on_cpu(lambda t, f=function: f(t, norm=norm), z)
        equal_on_cpu(lambda t, f=function: f(t, n=7, dim=1, norm=norm), z.transpose(0, 2))
        equal_on_cpu(lambda t, f=function: f(t, norm=norm), x)
    for function in (fft.fft2, fft.ifft2, fft.fftn, fft.ifftn):
        equal_on_cpu(lambda t, f=function: f(t, norm=norm), z.conj())
    for function in (fft.rfft, fft.ihfft, fft.rfft2, fft.rfftn):
        equal_on_cpu(lambda t, f=function: f(t, norm=norm), x)
    for function in (fft.irfft, fft.hfft, fft.irfft2, fft.irfftn):
        equal_on_cpu(lambda t, f=function: f(t, norm=norm), z)
    equal_on_cpu(lambda t: fft.irfft(t, n=7, dim=0, norm=norm), z)
    equal_on_cpu(lambda t: fft.irfftn(t, s=(4, 9), dim=(2, 0), norm=norm), z)
    equal_on_cpu(lambda t: fft.fftshift(fft.fftn(t, dim=())), z)


def test_results_that_are_given():
    x = torch.randn(4, 6)
    out = torch.empty(8, 4, dtype=torch.complex64, device="npu").t()[:, ::2]
    assert fft.rfft(x.npu(), out=out) is out
    torch.testing.assert_close(out.cpu(), fft.rfft(x))
    assert fft.fft(torch.complex(x, x).npu()[:0]).shape == (0, 6)


def spectral_layer(x, weight):
    """One layer of a Fourier neural operator."""
    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    spectrum = fft.rfft2(x)
    mixed = torch.zeros_like(spectrum)
    mixed[..., :3, :3] = torch.einsum("bixy,ioxy->boxy", spectrum[..., :3, :3], weight)
    y = fft.irfft2(mixed, s=x.shape[-2:])
    y.square().sum().backward()
    return y.detach(), x.grad, weight.grad


def test_spectral_layers():
    weight = torch.randn(2, 2, 3, 3, dtype=torch.complex64)
    equal_on_cpu(spectral_layer, torch.randn(2, 2, 8, 7), weight, rtol=1e-4, atol=1e-4)


def test_spectrograms():
    x = torch.randn(2, 400)

    def there_and_back(t):
        window = torch.hann_window(64, device=t.device)
        spectrum = torch.stft(t, 64, window=window, return_complex=True)
        return spectrum.abs(), torch.istft(spectrum, 64, window=window, length=400)

    equal_on_cpu(there_and_back, x, rtol=1e-4, atol=1e-4)


def test_wrong_types_are_refused():
    with pytest.raises(RuntimeError, match="expected complex numbers"):
        torch.ops.aten._fft_c2c(torch.ones(4, device="npu"), [0], 0, True)
    with pytest.raises(RuntimeError, match="expects a real input tensor"):
        fft.rfft(torch.ones(4, dtype=torch.complex64, device="npu"))
