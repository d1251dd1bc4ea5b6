"""Where a user's line once did on npu what it does not do on the CPU."""

import pytest
import torch
from onnxruntime_npu import torch_device


def both(function):
    """The function's results on npu and on the CPU, both there."""
    return function("npu").cpu(), function("cpu")


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize("value", [torch.tensor(2), torch.tensor(2.5), torch.tensor([3]), True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.bfloat16])
@pytest.mark.parametrize("where", ["rows", "all", "behind a slice"])
def test_a_number_of_another_type_is_put_where_a_mask_says(where, dtype, value):
    def put(device):
        x = torch.zeros(3, 4, 2, dtype=dtype, device=device)
        rows = torch.tensor([True, False, True], device=device)
        picked = {
            "rows": rows,
            "all": torch.ones(3, 4, 2, device=device).cumsum(1) > 2,
            "behind a slice": (slice(None), rows.repeat(2)[:4]),
        }[where]
        x[picked] = value.to(device) if isinstance(value, torch.Tensor) else value
        return x

    got, expected = both(put)
    assert torch.equal(got, expected) and got.any()
    assert torch.equal(both(lambda d: put(d).transpose(0, 2))[0], expected.transpose(0, 2))


def test_a_masked_number_is_put_without_waiting_for_the_mask():
    x, mask = torch.zeros(1 << 15, device="npu"), torch.ones(1 << 15, device="npu") > 0
    with pytest.warns(UserWarning, match="prototype"):
        torch.npu.set_sync_debug_mode("error")
    try:
        x[mask] = 3
    finally:
        with pytest.warns(UserWarning, match="prototype"):
            torch.npu.set_sync_debug_mode(0)
    assert bool((x == 3).all())


def test_gradients_pass_beside_a_masked_number():
    x = torch.arange(6.0, device="npu").requires_grad_()
    value = torch.tensor(7.0, device="npu").requires_grad_()
    y = x * 2
    y[y > 4] = value
    (y * y).sum().backward()
    assert x.grad.tolist() == [0, 8, 16, 0, 0, 0] and value.grad.item() == 42


def test_a_wrong_index_is_told_before_a_wrong_type():
    for index in (torch.tensor([1.0]), torch.ones(4, dtype=torch.bool)):
        with pytest.raises(IndexError):
            torch.zeros(3, device="npu")[index.npu()] = torch.tensor([1, 2], device="npu")


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("dim", [0, -1, None])
@pytest.mark.parametrize("keepdim", [True, False])
@pytest.mark.parametrize("name", ["std", "var", "std_mean", "var_mean"])
@pytest.mark.parametrize("correction", [0, 1])
def test_spread_of_scalars_and_of_rows(name, correction, keepdim, dim):
    function = getattr(torch, name)
    for x in (torch.tensor(3.5), torch.rand(4, 5), torch.rand(4, 5).half()):
        expected = function(x.float(), dim=dim, keepdim=keepdim, correction=correction)
        got = function(x.npu(), dim=dim, keepdim=keepdim, correction=correction)
        for g, e in zip(torch.atleast_1d(got), torch.atleast_1d(expected), strict=True):
            torch.testing.assert_close(g.cpu(), e.to(x.dtype), equal_nan=True)


def test_a_scalar_has_no_second_dimension_to_spread_over():
    with pytest.raises(IndexError, match="Dimension out of range"):
        torch.tensor(1.0, device="npu").std(dim=1)


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.half, torch.bfloat16])
@pytest.mark.parametrize("function", [torch.sign, torch.sgn, torch.Tensor.sign_])
def test_nan_has_the_sign_0(function, dtype):
    values = [[float("nan"), -0.0, 0.0], [float("inf"), -float("inf"), 1e-7]]

    def sign(device):
        return function(torch.tensor(values, dtype=dtype, device=device).t())

    got, expected = both(sign)
    assert torch.equal(got, expected) and got[0, 0] == 0
    assert torch.equal(
        torch.tensor([-3, 0, 9], device="npu").sign().cpu(), torch.tensor([-1, 0, 1])
    )


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.float16, torch.complex128])
@pytest.mark.parametrize("name", ["sum", "prod", "mean"])
def test_complex_numbers_are_reduced_as_another_type(name, dtype):
    if name == "mean" and dtype == torch.int32:
        pytest.skip("no mean of integers")
    x = torch.tensor([1 + 2j, 3 - 1j])
    got = getattr(torch, name)(x.npu(), dtype=dtype)
    assert torch.equal(got.cpu(), getattr(torch, name)(x, dtype=dtype))


def test_a_complex_number_is_not_0_by_either_part():
    x = torch.tensor([0j, 1j, 2 + 0j])
    assert x.npu().logical_not().tolist() == [True, False, False]


def test_bits_of_floats_are_refused_as_by_torch():
    with pytest.raises(NotImplementedError, match="bitwise_not"):
        torch.ones(2, device="npu").bitwise_not()
    assert torch_device.fallback_counts() == {}


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize("mask", [None, "padding", "source", "both"])
@pytest.mark.parametrize("options", [{}, {"norm_first": True, "activation": "gelu"}], ids=str)
def test_an_encoder_infers_as_on_the_cpu(options, mask):
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options)
    model = torch.nn.TransformerEncoder(layer, 2).eval()
    padding = torch.tensor([[False] * 5, [False, False, False, True, True]])
    masks = {
        "src_key_padding_mask": padding if mask in ("padding", "both") else None,
        "mask": torch.ones(5, 5).triu(1).bool() if mask in ("source", "both") else None,
    }
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        expected = model(x, **masks)
        got = model.npu()(x.npu(), **{k: m if m is None else m.npu() for k, m in masks.items()})
    real = ~padding if mask in ("padding", "both") else slice(None)  # the CPU cuts the rest off
    torch.testing.assert_close(got.cpu()[real], expected[real] if mask else expected)


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
def test_attention_infers_as_on_the_cpu(need_weights, average):
    model = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
    other, x = torch.randn(2, 7, 8), torch.randn(2, 5, 8)
    padding = torch.zeros(2, 5, dtype=torch.bool)
    padding[1, 3:] = True
    on_npu = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval().npu()
    on_npu.load_state_dict(model.state_dict())
    for query, mask in ((x, None), (x, padding), (other, None), (other, padding)):

        def attend(model, device, query=query, mask=mask):
            key = query if query is x else x
            query_there = query.to(device)
            key_there = query_there if key is query else key.to(device)
            return model(
                query_there, key_there, key_there, need_weights=need_weights,
                average_attn_weights=average,
                key_padding_mask=None if mask is None else mask.to(device),
            )  # fmt: skip

        with torch.no_grad():
            got, expected = attend(on_npu, "npu"), attend(model, "cpu")
        torch.testing.assert_close(got[0].cpu(), expected[0])
        assert (got[1] is None) == (expected[1] is None) == (not need_weights)
        if need_weights:
            torch.testing.assert_close(got[1].cpu(), expected[1])


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("kept", [True, False])
def test_a_compiled_batch_norm_trains_without_the_cpu(kept, momentum):
    module = torch.nn.BatchNorm2d(3, momentum=momentum, track_running_stats=kept).npu()
    twin = torch.nn.BatchNorm2d(3, momentum=momentum, track_running_stats=kept)
    x = torch.randn(4, 3, 5, 5)
    compiled = torch.compile(module, backend="aot_eager")
    for _ in range(2):
        compiled(x.npu()).square().sum().backward()
        twin(x).square().sum().backward()
    torch.testing.assert_close(module.weight.grad.cpu(), twin.weight.grad, rtol=1e-4, atol=1e-4)
    if kept:
        torch.testing.assert_close(module.running_var.cpu(), twin.running_var)


@pytest.mark.usefixtures("no_fallback")
def test_spectral_norm_stays_on_the_device():
    layer = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(6, 4))
    twin = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(6, 4).npu())
    twin.load_state_dict(layer.state_dict())
    x = torch.randn(3, 6)
    torch.testing.assert_close(twin(x.npu()).cpu(), layer(x))


def test_a_generator_of_npu_fills_nothing_elsewhere():
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found"):
        torch.empty(3).uniform_(generator=torch.Generator("npu"))


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize("number", [300, -300, 256, -1, 2**40 + 5, 44, 2.5])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.bool])
def test_numbers_beyond_a_type_are_compared_as_on_the_cpu(dtype, number):
    x = torch.tensor([0, 1, 5, 44, 100, 127]).to(dtype)
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        got, expected = both(lambda device, name=name: getattr(x.to(device), name)(number))
        assert torch.equal(got, expected), name
