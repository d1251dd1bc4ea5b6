"""Samples of distributions whose parameters are tensors."""

import mpmath
import pytest
import torch

pytestmark = pytest.mark.usefixtures("no_fallback")

N = 40000
DRAWS = {
    "poisson": lambda x, generator: torch.poisson(x * 7, generator=generator),
    "binomial": lambda x, generator: torch.binomial(x * 20, x / 2, generator=generator),
    "gamma": lambda x, generator: torch._standard_gamma(x, generator=generator),
    "dirichlet": lambda x, generator: torch._sample_dirichlet(x, generator=generator),
}


@pytest.mark.parametrize("name", DRAWS)
def test_samples_replay_from_a_seed(name):
    x = torch.full((50, 4), 0.8).npu()
    generator = torch.Generator("npu").manual_seed(5)
    first, second = DRAWS[name](x, generator), DRAWS[name](x, generator)
    assert not torch.equal(first, second)
    generator.manual_seed(5)
    assert torch.equal(DRAWS[name](x, generator), first)
    torch.npu.manual_seed(5)
    before = torch.random.get_rng_state()
    assert torch.equal(DRAWS[name](x, None), first)
    assert torch.equal(torch.random.get_rng_state(), before)  # the CPU's is independent
    with pytest.raises(RuntimeError, match="Expected a 'npu' device type for generator"):
        DRAWS[name](x, torch.Generator("cpu"))
    generator.manual_seed(5)  # of several threads or one: numbers of a part are those of the whole
    torch.testing.assert_close(DRAWS[name](x[:2], generator), first[:2])


def assert_moments(samples, mean, variance):
    """Within 5 standard deviations of the estimates, for distributions of little kurtosis."""
    samples = samples.cpu().double()
    assert abs(samples.mean() - mean) < 5 * (variance / N) ** 0.5
    assert abs(samples.var() - variance) < 5 * variance * (6 / N) ** 0.5


@pytest.mark.parametrize("rate", [0.5, 9.0, 11.0, 400.0])
def test_poisson_moments(rate):
    samples = torch.poisson(torch.full((N,), rate).npu())
    assert torch.equal(samples, samples.round()) and samples.min() >= 0
    assert_moments(samples, rate, rate)


@pytest.mark.parametrize(
    "count, p", [(10, 0.3), (1000, 0.004), (100, 0.3), (100, 0.7), (5000, 0.5)]
)
def test_binomial_moments(count, p):
    samples = torch.binomial(torch.full((N,), float(count)).npu(), torch.full((1,), p).npu())
    assert samples.min() >= 0 and samples.max() <= count
    assert_moments(samples, count * p, count * p * (1 - p))


def test_binomial_edges():
    count = torch.tensor([0.0, 5.0, 5.0, 5.0, float("nan")]).npu()
    p = torch.tensor([0.5, 0.0, 1.0, float("nan"), 0.5]).npu()
    assert torch.binomial(count, p).nan_to_num(-1).tolist() == [0, 0, 5, -1, -1]


@pytest.mark.parametrize("shape", [1.0, 2.5, 60.0])
def test_gamma_moments(shape):
    assert_moments(torch._standard_gamma(torch.full((N,), shape).npu()), shape, shape)


def test_gamma_of_small_shapes_is_positive():
    small = torch._standard_gamma(torch.full((N,), 0.3).npu()).double()
    assert small.min() > 0 and abs(small.mean().item() - 0.3) < 0.02
    tiny = torch._standard_gamma(torch.full((100,), 1e-4, dtype=torch.half).npu())
    assert (tiny > 0).all()


def test_dirichlet_sums_to_one():
    weights = torch.tensor([0.5, 1.0, 2.5]).npu()
    samples = torch.distributions.Dirichlet(weights).sample((N,))
    torch.testing.assert_close(samples.sum(-1).cpu(), torch.ones(N))
    torch.testing.assert_close(samples.mean(0), weights / 4, rtol=0, atol=0.01)


def test_negative_rates_are_a_device_error():
    with pytest.raises(RuntimeError, match="expected rates of at least 0, got -1"):
        torch.poisson(torch.tensor([1.0, -1.0]).npu()).sum().item()


@pytest.mark.no_values
def test_dtypes_of_parameters_are_checked():
    with pytest.raises(RuntimeError, match="expected a tensor of real floats, got Long"):
        torch.poisson(torch.ones(3, dtype=torch.long).npu())
    with pytest.raises(RuntimeError, match="Found dtype Double but expected Float"):
        torch.binomial(torch.ones(3).npu(), torch.ones(3, dtype=torch.double).npu())


def test_gradients_of_gamma_samples():
    @mpmath.workdps(120)  # the tail of a sample far from its mean is tiny
    def quantile_slope(a, x):
        def below(t):
            return mpmath.gammainc(t, 0, x, regularized=True)

        density = mpmath.exp((a - 1) * mpmath.log(x) - x - mpmath.loggamma(a))
        return float(-mpmath.diff(below, a) / density)

    shapes = torch.tensor([0.1, 0.7, 1.0, 3.0, 20.0, 90.0], dtype=torch.float64)
    for factor in (0.1, 0.5, 1.0, 1.5, 3.0):
        x = shapes * factor
        got = torch._standard_gamma_grad(shapes.npu(), x.npu()).cpu()
        expected = [quantile_slope(a, b) for a, b in zip(shapes.tolist(), x.tolist(), strict=True)]
        # what differences of fourth order leave of 16 digits
        torch.testing.assert_close(
            got, torch.tensor(expected, dtype=torch.float64), rtol=1e-8, atol=0
        )
    parameter = torch.full((N,), 2.5, device="npu", requires_grad=True)
    torch.distributions.Gamma(parameter, 1.0).rsample().mean().backward()
    assert abs(parameter.grad.sum().item() - 1) < 0.02  # the mean is the shape
