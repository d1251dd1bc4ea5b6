"""Quantised linear layers: schemes, errors, and what they leave alone."""

from __future__ import annotations

import copy
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import onnxruntime_npu
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onnxruntime_npu.converters import SCHEMES, compensated_rounding, quantize_weights
from onnxruntime_npu.converters.calibration import rounded_for_inputs, seen_inputs
from onnxruntime_npu.converters.compensated_rounding import compensated_columns
from onnxruntime_npu.converters.rounding import quantized_columns


class Model(torch.nn.Module):
    """Three layers, of which a head stays as it is."""

    def __init__(self, dtype: torch.dtype, bias: bool = True):
        super().__init__()
        torch.manual_seed(1)
        self.up = torch.nn.Linear(256, 320, bias=bias)
        self.down = torch.nn.Linear(320, 256, bias=bias)
        self.lm_head = torch.nn.Linear(256, 64, bias=False)
        self.to(dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lm_head(x + self.down(torch.nn.functional.silu(self.up(x))))


def _x(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2)).to(dtype)


def _quantised(scheme: str, dtype: torch.dtype, bias: bool = True, **options: Any) -> Model:
    if scheme == "w8a8":
        options["calibration"] = [(_x(dtype, 4, 16, 256),)]
    model = quantize_weights(Model(dtype, bias).eval(), scheme, **options)
    assert isinstance(model, Model)
    return model


def _error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    actual, expected = actual.double(), expected.double()
    return float((actual - expected).norm() / expected.norm())


# Rounding to b bits errs by about 1 / (sqrt(12) * 2^(b-1) / 3) of normal values: 0.7 % for 8 bits
# and 11 % for 4; half of the model's result passes through two such layers.
BOUNDS = {"w8a16": 0.01, "w4a16": 0.12, "w4a8": 0.12, "w8a8": 0.02, "w8a8_dynamic": 0.02}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("device", ["cpu", "npu"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_quantised_model_is_near_the_float_one(scheme: str, device: str, bias: bool) -> None:
    dtype = torch.bfloat16
    x = _x(dtype, 2, 9, 256)
    with torch.no_grad():
        expected = Model(torch.float64, bias)(x.double())
        actual = _quantised(scheme, dtype, bias).to(device)(x.to(device)).cpu()
    # bfloat16 itself errs by half a per cent here.
    assert _error(actual, expected) < BOUNDS[scheme] + 0.01


@pytest.mark.parametrize("scheme", ["w8a16", "w4a16"])
def test_activations_are_rounded_on_request(scheme: str) -> None:
    x = _x(torch.bfloat16, 2, 9, 256)
    with torch.no_grad():
        expected = Model(torch.float64)(x.double())
        exact, rounded = (
            _quantised(scheme, torch.bfloat16, inner_precise=n).to("npu")(x.to("npu")).cpu()
            for n in (0, 1)
        )
    assert not torch.equal(exact, rounded)
    assert _error(rounded, expected) < BOUNDS[scheme] + 0.02  # of activations, too


@pytest.mark.parametrize("scheme", ["w8a8", "w8a8_dynamic"])
def test_float32_models_have_integer_products(scheme: str) -> None:
    x = _x(torch.float32, 5, 256)
    with torch.no_grad():
        actual = _quantised(scheme, torch.float32)(x)
        expected = Model(torch.float64)(x.double())
    assert actual.dtype == torch.float32
    assert _error(actual, expected) < BOUNDS[scheme]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_quantised_model_is_exported(scheme: str, tmp_path: Path) -> None:
    dtype = torch.float16
    model, x = _quantised(scheme, dtype), _x(dtype, 3, 256)
    path = tmp_path / "model.onnx"
    shapes = {"x": {0: torch.export.Dim("rows")}}
    report = onnxruntime_npu.export(model, (x,), path, dynamic_shapes=shapes)
    product = "NPUQuantMatmul" if "a8" in scheme else "NPUWeightQuantBatchMatmulV2"
    assert report.nodes[f"npu::{product}"] == 2
    session = ort.InferenceSession(path, providers=["NPUExecutionProvider"])
    for rows in (1, 3, 20):
        given_x = _x(dtype, rows, 256)
        with torch.no_grad():
            expected = model(given_x).float().numpy()
        (actual,) = session.run(None, {"x": given_x.numpy()})
        # Sums in another order, rounded to float16 three times on the way.
        np.testing.assert_allclose(actual.astype(np.float32), expected, rtol=4e-3, atol=4e-3)


def test_a_head_is_left_alone_and_skip_names_others() -> None:
    model = _quantised("w8a16", torch.bfloat16, skip=("down",))
    assert isinstance(model.down, torch.nn.Linear)
    assert not isinstance(model.up, torch.nn.Linear)
    assert not isinstance(model.lm_head, torch.nn.Linear)


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([4, 8]),
    st.sampled_from([0, 32]),
    st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_the_chosen_scale_is_no_worse_than_the_largest_value_s(
    seed: int, bits: int, group: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(3, 80, generator=generator)
    integers, scales = quantized_columns(weight, bits, group, dtype)
    high = 2 ** (bits - 1) - 1
    length = group or 80
    for begin in range(0, 80, length):
        part = weight[:, begin : begin + length]
        plain = (part.abs().amax(1) / high).to(dtype).float()[:, None]
        rounded = (part / plain).round().clamp(-high - 1, high) * plain
        chosen = (
            integers[begin : begin + length].t().float() * scales[begin // length].float()[:, None]
        )
        ours, theirs = ((r - part).square().sum(1) for r in (chosen, rounded))
        assert bool((ours <= theirs * (1 + 1e-6)).all())


@pytest.mark.parametrize(("bits", "group", "gain"), [(4, 32, 0.95), (4, 128, 0.85), (8, 0, 0.99)])
def test_the_search_of_scales_gains_over_plain_rounding(bits: int, group: int, gain: float) -> None:
    """The larger the group, the farther its largest value lies outside of the others."""
    weight = torch.randn(64, 1024, generator=torch.Generator().manual_seed(3))
    integers, scales = quantized_columns(weight, bits, group, torch.float32)
    high, length = 2 ** (bits - 1) - 1, group or 1024
    groups = weight.unflatten(1, (-1, length))
    plain = groups.abs().amax(-1, keepdim=True) / high
    rounded = (groups / plain).round() * plain
    chosen = integers.t().unflatten(1, (-1, length)) * scales.t().unsqueeze(-1)
    ours, theirs = ((each - groups).square().mean() for each in (chosen, rounded))
    assert float(ours / theirs) < gain


def correlated(rows: int, columns: int) -> torch.Tensor:
    """Inputs like those of a language model: a few directions have most of the variance."""
    generator = torch.Generator().manual_seed(4)
    mixed = torch.randn(rows, 24, generator=generator) @ torch.randn(
        24, columns, generator=generator
    )
    return mixed + torch.randn(rows, columns, generator=generator)


@pytest.mark.parametrize("group", [0, 32, 96])  # 96 leaves a smaller last group
def test_rounding_for_inputs_halves_the_error_of_outputs(group: int) -> None:
    torch.manual_seed(5)
    seen, unseen = correlated(2048, 256).split(1024)
    linear = torch.nn.Linear(256, 64).bfloat16()
    model = torch.nn.Sequential(linear)
    options = {"group_size": group or 256}
    plain = quantize_weights(torch.nn.Sequential(linear), "w4a16", **options)
    calibrated = quantize_weights(model, "w4a16", calibration=[seen.bfloat16()], **options)
    with torch.no_grad():
        expected = unseen @ linear.weight.float().t() + linear.bias.float()
        errors = [
            _error(model(unseen.bfloat16()).float(), expected) for model in (plain, calibrated)
        ]
    assert errors[1] < 0.5 * errors[0]


def test_rounding_for_inputs_does_not_compute_the_layers_that_it_rounds() -> None:
    """In 16 bits torch takes most of the time for them on a processor without such products."""

    def not_needed(_: torch.Tensor) -> torch.Tensor:
        raise AssertionError("the output of the layer itself is not used")

    def rounded_layer(layer: torch.nn.Linear) -> torch.nn.Module:
        return torch.nn.Linear(layer.in_features, layer.out_features)

    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 32))
    layers = {name: layer for name, layer in model.named_children()}
    layers["0"].forward = not_needed
    rounded = rounded_for_inputs(
        model, layers, lambda layer, _: rounded_layer(layer), [torch.randn(4, 64)]
    )
    assert list(rounded) == ["0", "1"]
    assert layers["0"].forward is not_needed and "forward" not in layers["1"].__dict__


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_watched_layers_are_multiplied_in_float32_where_torch_has_no_products(
    monkeypatch, dtype
) -> None:
    asked = {
        torch.bfloat16: "_is_mkldnn_bf16_supported",
        torch.float16: "_is_mkldnn_fp16_supported",
    }
    monkeypatch.setattr(torch.ops.mkldnn, asked[dtype], lambda: False)
    multiplied = []
    linear = torch.nn.functional.linear

    def noted(given: torch.Tensor, *operands: torch.Tensor | None) -> torch.Tensor:
        multiplied.append(given.dtype)
        return linear(given, *operands)

    monkeypatch.setattr(torch.nn.functional, "linear", noted)
    model = Model(dtype).eval()
    layers = {"up": model.up, "down": model.down}
    seen = seen_inputs(model, layers, [_x(dtype, 4, 256)])
    # The head is not watched.
    assert multiplied == [torch.float32, torch.float32, dtype]
    monkeypatch.setattr(torch.ops.mkldnn, asked[dtype], lambda: True)
    plain = seen_inputs(model, layers, [_x(dtype, 4, 256)])
    assert multiplied[3:] == [dtype] * 3
    for names, inputs in seen.items():
        # What torch adds up in another order is rounded to the dtype.
        torch.testing.assert_close(
            inputs.largest, plain[names].largest, rtol=2 * torch.finfo(dtype).eps, atol=0
        )


class Latents(torch.nn.Module):
    """Two layers that take the same tensor, with a third between; or it is changed in place."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.query_down, self.query_up, self.key_down = (
            torch.nn.Linear(64, 64, bias=False) for _ in range(3)
        )
        self.in_place = in_place

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query = self.query_up(self.query_down(x))
        return query + self.key_down(x.mul_(2) if self.in_place else x)


@pytest.mark.parametrize("in_place", [False, True])
def test_layers_that_take_one_tensor_are_seen_together_whatever_runs_between(in_place) -> None:
    model = Latents(in_place).eval()
    layers = dict(model.named_children())
    names = list(seen_inputs(model, layers, [_x(torch.float32, 4, 64)]))
    together = [("query_down", "key_down"), ("query_up",)]
    assert names == ([(name,) for name in layers] if in_place else together)


class Attention(torch.nn.Module):
    """Projections that take the same tensor, and one that takes another."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.query, self.key, self.value, self.out = (
            torch.nn.Linear(64, 64, bias=False) for _ in range(4)
        )
        with torch.no_grad():  # what is learned of large features is small
            for layer in (self.query, self.key, self.value):
                layer.weight[:, 5] /= 40
                layer.weight[:, 40] /= 100

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.query(x) @ self.key(x).mT / 64**0.5
        return self.out(scores.softmax(-1) @ self.value(x))


def with_large_features(*shape: int) -> torch.Tensor:
    """Like the residuals of a language model: few features are much larger than all others."""
    x = _x(torch.float32, *shape)
    x[..., 5] *= 40
    x[..., 40] *= 100
    return x


@pytest.mark.parametrize("scheme", ["w8a8", "w8a8_dynamic"])
def test_weights_take_over_large_features(scheme: str) -> None:
    seen, unseen = with_large_features(2, 64, 64)
    attention = Attention().eval()
    plain, calibrated = copy.deepcopy(attention), copy.deepcopy(attention)
    quantize_weights(plain, "w8a8_dynamic")
    quantize_weights(calibrated, scheme, calibration=[seen], static_error=math.inf)
    with torch.no_grad():
        expected = attention.value(unseen)
        errors = [_error(model.value(unseen), expected) for model in (plain, calibrated)]
    assert errors[1] < 0.2 * errors[0], errors
    # One rounding of a tensor serves all who take it.
    first = calibrated.query.input_scale
    assert all(
        torch.equal(first, layer.input_scale) for layer in (calibrated.key, calibrated.value)
    )
    assert not torch.equal(first, calibrated.out.input_scale)


def test_layers_that_a_single_row_drowns_have_a_scale_for_each() -> None:
    x = _x(torch.float32, 256, 256)
    x[0] *= 500
    model = Model(torch.float32, bias=False).eval()
    model.down = torch.nn.Linear(320, 256, bias=False)

    def quantised(**options: Any) -> Any:
        return quantize_weights(copy.deepcopy(model), "w8a8", calibration=[(x,)], **options)

    chosen = quantised()
    assert not chosen.up.static and not chosen.down.static
    static = quantised(static_error=math.inf)
    assert static.up.static and static.down.static
    with torch.no_grad():
        expected = model(x[1:])
        errors = [_error(each(x[1:]), expected) for each in (static, chosen)]
    assert errors[1] < BOUNDS["w8a8"] and errors[0] > 0.1, errors
    x[0] /= 500
    assert quantised().up.static
    assert not quantised(static_error=0).up.static


def test_layers_that_calibration_does_not_reach_have_a_scale_per_token() -> None:
    class Model(torch.nn.ModuleDict):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self["used"](x)

    model = Model({"used": torch.nn.Linear(64, 64), "other": torch.nn.Linear(64, 64)})
    with pytest.raises(ValueError, match="reach every layer, got none for other"):
        quantize_weights(model, "w8a8", calibration=[torch.randn(4, 64)])
    quantize_weights(model, "w8a8_dynamic", calibration=[with_large_features(4, 64)])
    assert model["used"].input_scale is not None and model["other"].input_scale is None


@pytest.mark.parametrize("scheme", ["w8a8", "w8a8_dynamic"])
def test_features_that_calibration_has_not_seen_do_not_drown_others(scheme: str) -> None:
    seen, unseen = _x(torch.float16, 2, 64, 64)
    seen[:, 9] = 0
    layer = torch.nn.Linear(64, 32).half()
    with torch.no_grad():
        expected = layer(unseen.clone())
        actual = quantize_weights(layer, scheme, calibration=[seen])(unseen)
    # One of 64 features may be cut off to what was seen: 1 / 8 of the outputs.
    assert _error(actual, expected) < (0.15 if scheme == "w8a8" else 0.03)


def test_zeros_as_calibration_leave_scales_that_are_finite() -> None:
    zeros = torch.zeros(4, 64)
    layer = quantize_weights(torch.nn.Linear(64, 32, bias=False), "w8a8", calibration=[zeros])
    assert bool(layer(torch.ones(1, 64)).isfinite().all())


@pytest.mark.parametrize("calibrated", [False, True])
def test_int4_uses_its_whole_range_in_both_directions(calibrated: bool) -> None:
    """Integers from -8 to 7 times a scale of either sign stay what they are."""
    generator = torch.Generator().manual_seed(6)
    integers = torch.randint(-8, 8, (64, 8, 32), generator=generator)
    integers[..., 0] = -8
    scale = torch.tensor([0.5, -0.25, 1.0, -2.0, 0.125, -1.0, 4.0, -0.5])[:, None]
    weight = (integers * scale).flatten(1)
    if calibrated:
        inputs = correlated(512, 256)
        found, scales, offsets = compensated_columns(weight, inputs.t() @ inputs, 32, torch.float16)
        assert offsets is None
    else:
        found, scales = quantized_columns(weight, 4, 32, torch.float16)
    assert torch.equal(found.t().unflatten(1, (8, 32)), integers.to(torch.int8))
    assert torch.equal(scales.t()[0].float(), scale[:, 0])


@pytest.mark.parametrize("offset", [-5.375, -8.0, 0.0])
def test_rounding_for_inputs_finds_offsets_that_are_eighths(offset: float) -> None:
    """Blocks of 32 with a scale and a minimum, as files of int4 have them, stay what they are."""
    generator = torch.Generator().manual_seed(6)
    integers = torch.randint(0, 16, (64, 8, 32), generator=generator).float()
    integers[..., 0], integers[..., 1] = 0, 15
    scale = torch.rand(64, 8, 1, generator=generator) + 0.5
    weight = ((integers + offset) * scale).flatten(1)
    inputs = correlated(512, 256)
    found, scales, offsets = compensated_columns(weight, inputs.t() @ inputs, 32, torch.float32)
    if offset == -8.0:  # that of the integers themselves
        assert offsets is None
        offsets = torch.zeros_like(scales)
    assert offsets is not None
    assert torch.equal(offsets, (offsets * 8).round() / 8)
    restored = (found.t().unflatten(1, (8, 32)) + offsets.t()[..., None]) * scales.t()[..., None]
    torch.testing.assert_close(restored.flatten(1), weight, rtol=1e-4, atol=1e-4)


def test_offsets_are_those_that_a_kernel_adds_to_int4_in_a_byte() -> None:
    """Results are right with any offsets; with others, a product is slower and nothing tells."""
    root = Path(__file__).resolve().parents[2]
    kernel = (root / "ep/kernels/gemm/rounded_vnni_exact.cc").read_text()
    (fraction,) = re.findall(r"int kFraction = bits == 4 \? (\d+) : 0;", kernel)
    parts = 2 ** int(fraction)
    assert parts == compensated_rounding._PARTS
    # What an int8 holds beside the least and the greatest integer of 4 bits.
    assert (-128 + 8 * parts) / parts == compensated_rounding._LEAST
    assert (127 - 7 * parts) / parts == compensated_rounding._MOST


def test_zeros_stay_zeros() -> None:
    integers, scales = quantized_columns(torch.zeros(4, 32), 4, 0, torch.float16)
    assert not integers.any()
    assert bool((scales == 1).all())


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (
            ("w2a16",),
            {},
            "expected a scheme of w8a16, w4a16, w4a8, w8a8, w8a8_dynamic, got 'w2a16'",
        ),
        (("w4a16",), {"group_size": 48}, "multiple of 32, got 48"),
        (("w8a8",), {}, "expected calibration inputs for w8a8, got none"),
        (
            ("w8a16",),
            {"calibration": []},
            "calibration with w4a16, w8a8, w8a8_dynamic only, got it with w8a16",
        ),
        (("w8a8",), {"calibration": []}, "reach every layer, got none for up, down"),
        (("w4a16",), {"calibration": []}, "one batch of calibration inputs for w4a16, got none"),
        (("w4a16",), {"calibration": [1, 2]}, "for w4a16, got more: join them"),
        (
            ("w4a16",),
            {"calibration": [torch.full((2, 256), torch.inf, dtype=torch.bfloat16)]},
            "finite inputs of every layer, got infinity or NaN at up",
        ),
        (
            ("w8a8",),
            {"calibration": [torch.full((2, 256), torch.inf, dtype=torch.bfloat16)]},
            "finite inputs of every layer, got infinity or NaN at up",
        ),
        (("w8a8",), {"calibration": [], "static_error": -1}, "static_error of at least 0, got -1"),
        (("w8a16",), {"skip": ("up", "down", "lm_head")}, "to quantise, got none"),
        (("w8a8_dynamic",), {"inner_precise": 1}, "0, or 1 with w8a16 or w4a16, got 1 with w8a8"),
        (("w4a16",), {"inner_precise": 2}, "0, or 1 with w8a16 or w4a16, got 2 with w4a16"),
    ],
)
def test_refusals(arguments: tuple[str], options: dict[str, Any], message: str) -> None:
    model = Model(torch.bfloat16)
    with pytest.raises(ValueError, match=message):
        quantize_weights(model, *arguments, **options)
    assert isinstance(model.up, torch.nn.Linear)


def test_float32_needs_a_16_bit_model_for_float_products() -> None:
    with pytest.raises(ValueError, match="expected a model of float16 or bfloat16 for w4a16"):
        quantize_weights(Model(torch.float32), "w4a16")


def test_text_has_to_be_tokenised() -> None:
    with pytest.raises(TypeError, match="pass text through the tokenizer"):
        quantize_weights(Model(torch.bfloat16), "w8a8", calibration=["text"])
