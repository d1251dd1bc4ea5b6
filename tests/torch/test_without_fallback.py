"""Operators of common models run on the device, with gradients.

test_opinfo.py compares values with or without a fallback; these tests exclude a fallback.
"""

import pytest

torch = pytest.importorskip("torch")

import warnings  # noqa: E402

from onnxruntime_npu import torch_device  # noqa: E402

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

OPERATORS = [
    "cdist", "nn.functional.adaptive_max_pool1d", "nn.functional.adaptive_max_pool2d",
    "nn.functional.binary_cross_entropy_with_logits", "nn.functional.ctc_loss",
    "nn.functional.grid_sample", "nn.functional.mish", "nn.functional.pdist", "unique",
    "unique_consecutive",
]  # fmt: skip


def results(op, sample, device):
    """The floating-point results and the gradients of the floating-point inputs."""
    moved = sample.transform(
        lambda x: (
            x.detach().to(device).requires_grad_(x.requires_grad)
            if isinstance(x, torch.Tensor)
            else x
        )
    )
    result = op(moved.input, *moved.args, **moved.kwargs)
    outputs = [result] if isinstance(result, torch.Tensor) else list(result)
    leaves = [
        x
        for x in (moved.input, *moved.args, *moved.kwargs.values())
        if isinstance(x, torch.Tensor) and x.requires_grad
    ]
    if not leaves:
        return outputs
    with_gradient = [y for y in outputs if y.requires_grad]
    grads = torch.autograd.grad(
        with_gradient,
        leaves,
        [torch.linspace(-1, 2, y.numel()).view(y.shape).to(device) for y in with_gradient],
    )
    return [*outputs, *grads]


@pytest.mark.parametrize("name", OPERATORS)
def test_values_and_gradients_are_computed_on_the_device(name):
    for op in (o for o in op_db if o.name == name):
        for sample in op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd):
            expected = results(op, sample, "cpu")
            torch_device.reset_fallback_counts()
            got = results(op, sample, "npu")
            assert not torch_device.fallback_counts()
            for g, e in zip(got, expected, strict=True):
                torch.testing.assert_close(g.cpu(), e, rtol=1.3e-5, atol=1e-4, equal_nan=True)


def sample_grid(image, grid, mode="bilinear"):
    return torch.nn.functional.grid_sample(image, grid, mode, align_corners=False)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_floats_are_computed_in_float32_and_rounded_once(dtype):
    a, b = torch.randn(2, 5, 10).to(dtype), torch.randn(1, 4, 10).to(dtype)
    image, grid = torch.randn(1, 2, 5, 6).to(dtype), (torch.rand(1, 3, 4, 2) * 2 - 1).to(dtype)
    for function, inputs in (
        (torch.cdist, (a, b)),
        (sample_grid, (image, grid)),
    ):
        expected = function(*(t.float() for t in inputs)).to(dtype)
        got = function(*(t.npu() for t in inputs))
        assert got.dtype == dtype
        # Where the float32 results differ, they may be rounded to neighbours.
        torch.testing.assert_close(got.cpu(), expected, rtol=torch.finfo(dtype).eps, atol=1e-6)


def test_max_norm_cdist_gradient_survives_rounding():
    a = torch.tensor([[0.1, 3.3]], dtype=torch.half).npu().requires_grad_()
    b = torch.tensor([[0.05, -0.0123]], dtype=torch.half).npu()
    torch.cdist(a, b, p=float("inf")).sum().backward()
    assert a.grad.tolist() == [[0, 1]]


@pytest.mark.no_values
@pytest.mark.parametrize(
    "first, second, message",
    [
        (torch.int64, torch.float32, "cdist only supports floating-point dtypes, X1 got: Long"),
        (torch.float32, torch.int32, "cdist only supports floating-point dtypes, X2 got: Int"),
        (torch.float32, torch.float64, "expected scalar type Float but found Double"),
    ],
)
def test_cdist_of_other_dtypes_is_refused_with_torch_message(first, second, message):
    with pytest.raises(RuntimeError, match=message):
        torch.cdist(torch.ones(3, 4).to(first).npu(), torch.ones(5, 4).to(second).npu())


def test_grid_sample_out_of_range_and_nan_coordinates():
    image = torch.ones(1, 1, 3, 3).npu()
    for value in (float("inf"), -float("inf"), 1e30, 1e9):
        grid = torch.full((1, 1, 1, 2), value).npu()
        for mode in ("bilinear", "nearest"):
            assert sample_grid(image, grid, mode).item() == 0
    nan = torch.full((1, 1, 1, 2), float("nan")).npu()  # treated as -1
    corner = torch.full((1, 1, 1, 2), -1.0).npu()
    assert sample_grid(image, nan) == sample_grid(image, corner)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.uint8, torch.bool])
@pytest.mark.parametrize("shape", [(0,), (), (5, 4)])
def test_unique_of_any_dtype(dtype, shape):
    x = (torch.rand(shape) * 4).to(dtype)
    for function in (torch.unique, torch.unique_consecutive):
        expected = function(x, return_inverse=True, return_counts=True)
        got = function(x.npu(), return_inverse=True, return_counts=True)
        for g, e in zip(got, expected, strict=True):
            assert torch.equal(g.cpu(), e) and g.dtype == e.dtype


def test_unique_counts_each_nan_separately():
    x = torch.tensor([1.0, float("nan"), 0.0, float("nan"), float("inf"), 1.0])
    values, counts = torch.unique(x.npu(), return_counts=True)
    assert counts.tolist() == [1, 2, 1, 1, 1]
    torch.testing.assert_close(values.cpu(), torch.unique(x), equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize(
    "input_lengths, target_lengths, message",
    [
        ((6, 6, 6), (2, 2), "input_lengths must be of size batch_size"),
        ((6, 7), (2, 2), "Expected input_lengths .* got value 7"),
        ((6, 6), (2, 4), "Expected target_lengths .* got value 4"),
        ((6, 6), (-1, 2), "Expected target_lengths .* got value -1"),
    ],
)
def test_ctc_loss_lengths_are_checked(input_lengths, target_lengths, message):
    log_probs = torch.randn(6, 2, 5).log_softmax(-1).npu()
    targets = torch.ones(2, 3, dtype=torch.long).npu()
    with pytest.raises(RuntimeError, match=message):
        torch.nn.functional.ctc_loss(log_probs, targets, input_lengths, target_lengths)


def test_out_of_range_label_is_a_device_error():
    log_probs = torch.randn(6, 2, 5).log_softmax(-1).npu()
    targets = torch.full((2, 3), 9).npu()
    with pytest.raises(RuntimeError, match=r"\[ctc_loss\] expected targets in \[0, 5\), got 9"):
        torch.nn.functional.ctc_loss(log_probs, targets, (6, 6), (3, 3)).item()
    assert torch.ones(2).npu().sum().item() == 2  # the device stays usable
