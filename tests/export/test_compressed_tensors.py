"""Checkpoints of compressed-tensors: which group a layer belongs to, and what is left out.

Their words and floats are made here, by the definition of each format.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from onnxruntime_npu.errors import ExportError
from onnxruntime_npu.exporter import export_causal_lm
from onnxruntime_npu.exporter.checkpoint import load_checkpoint
from onnxruntime_npu.exporter.integers.stored_linear import StoredLinear
from onnxruntime_npu.exporter.weights.lazy_weight import value_of

from .conftest import CONTINUATIONS, PROMPTS, expected_logits, tiny_model
from .stored_integers import (
    GROUP,
    Quantised,
    as_int8_tensors,
    as_packed_tensors,
    projections,
    save,
    tensor,
    tensors_config,
)
from .test_causal_lm import PROVIDERS
from .test_quantized import errors, halved_errors, rms

INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP}
INT8 = {"num_bits": 8, "type": "int", "strategy": "channel"}
FLOAT8 = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}


def checkpoint(path, bits_of=lambda name: 4, pack=as_packed_tensors, kind="llama", **config):
    """Save a tiny model whose layers have integers of so many bits; return it in floats."""
    rng, model, stored = np.random.default_rng(3), tiny_model(kind), {}
    for name, layer in projections(model).items():
        whole = pack is as_int8_tensors
        group = layer.in_features if whole else GROUP
        w = Quantised(*layer.weight.shape, bits_of(name), rng, group=group, symmetric=whole)
        stored |= {f"{name}.{key}": value for key, value in pack(w).items()}
        with torch.no_grad():
            layer.weight.copy_(w.weight)
    return save(path, model, stored, {**tensors_config("pack-quantized", num_bits=4), **config})


def group(weights=INT4, targets=("Linear",), **others):
    return {"targets": list(targets), "weights": weights, **others}


FLOAT4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def as_small_floats(kind, out, size):
    """Return the tensors of a random weight of nvfp4, mxfp4 or mxfp8, and its floats."""
    generator = torch.Generator().manual_seed(out + size)
    codes = torch.randint(0, 256, (out, size), generator=generator, dtype=torch.uint8)
    if kind == "mxfp8":
        stored = (torch.rand(out, size, generator=generator) - 0.5).to(torch.float8_e4m3fn)
        values, tensors = stored.float(), {"weight": stored}
    else:
        codes &= 15
        values = FLOAT4[codes.long()]
        tensors = {"weight_packed": codes[:, 0::2] | (codes[:, 1::2] << 4)}
    group = 16 if kind == "nvfp4" else 32
    places = torch.arange(size) // group
    if kind == "nvfp4":
        scale = torch.rand(out, size // group, generator=generator).to(torch.float8_e4m3fn)
        tensors |= {"weight_scale": scale, "weight_global_scale": torch.tensor([20.0])}
        return tensors, values * (scale.float() / 20)[:, places]
    exponent = torch.randint(122, 126, (out, size // group), generator=generator)
    tensors["weight_scale"] = exponent.to(torch.uint8)
    return tensors, values * 2.0 ** (exponent[:, places].float() - 127)


@pytest.mark.parametrize("kind", ["nvfp4", "mxfp4", "mxfp8"])
def test_small_floats_are_restored(tmp_path, kind):
    model = tiny_model("llama", intermediate_size=128)
    stored = {}
    for name, layer in projections(model).items():
        tensors, floats = as_small_floats(kind, *layer.weight.shape)
        stored |= {f"{name}.{key}": value for key, value in tensors.items()}
        with torch.no_grad():
            layer.weight.copy_(floats)
    bits, size = (8 if kind == "mxfp8" else 4), (16 if kind == "nvfp4" else 32)
    strategy = "tensor_group" if kind == "nvfp4" else "group"
    weights = {"num_bits": bits, "type": "float", "strategy": strategy, "group_size": size}
    inputs = {**weights, "dynamic": "local" if kind == "nvfp4" else True}
    config = tensors_config(f"{kind}-pack-quantized")
    config["config_groups"] = {"a": group(weights, input_activations=inputs)}
    save(tmp_path, model, stored, config)
    loaded = load_checkpoint(tmp_path)
    for name, layer in projections(model).items():
        actual = value_of(loaded.model.get_submodule(name).weight)
        # A quotient of scales is rounded once more, or once less.
        torch.testing.assert_close(actual, layer.weight.detach(), rtol=2**-22, atol=0)
    assert loaded.left.keys() == projections(model).keys()


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"num_bits": 6, "type": "float"}, r"expected symmetric floats of 4 or 8 bits, got 6 bits"),
        ({"num_bits": 8, "type": "float", "symmetric": False}, r"8 bits, symmetric False, in "),
        ({"num_bits": 8, "type": "int"}, r"expected weight in int8, got torch.float8_e4m3fn$"),
    ],
)
def test_other_small_floats_are_refused(tmp_path, weights, message):
    model, stored = tiny_model("llama", intermediate_size=128), {}
    for name, layer in projections(model).items():
        tensors, _ = as_small_floats("mxfp8", *layer.weight.shape)
        stored |= {f"{name}.{key}": value for key, value in tensors.items()}
    config = tensors_config("float-quantized")
    save(tmp_path, model, stored, {**config, "config_groups": {"a": group(weights)}})
    with pytest.raises(ExportError, match=message):
        load_checkpoint(tmp_path)


def assert_weights_are(loaded, model):
    for name, layer in projections(model).items():
        actual = loaded.model.get_submodule(name)
        assert isinstance(actual, StoredLinear)
        assert torch.equal(actual.weight, layer.weight)


def test_rounding_of_the_cache_is_reported(tmp_path):
    checkpoint(tmp_path / "source", kv_cache_scheme=FLOAT8)
    options = {"dtype": "float16", "quant": "keep", "check": False}
    report = export_causal_lm(tmp_path / "source", tmp_path / "out", **options)
    (warning,) = [line for line in report.warnings if "kv_cache_scheme" in line]
    assert warning == (
        "the checkpoint's kv_cache_scheme of float8 is left out: keys and values are cached as "
        "float16; cache_dtype='int8' (--kv-dtype int8) rounds them"
    )
    report = export_causal_lm(
        tmp_path / "source", tmp_path / "out", cache="static", cache_dtype="int8", **options
    )
    assert not any("kv_cache_scheme" in line for line in report.warnings)


def test_rounding_of_outputs_is_reported(tmp_path):
    model = checkpoint(tmp_path, config_groups={"a": group(output_activations=FLOAT8)})
    loaded = load_checkpoint(tmp_path)
    assert_weights_are(loaded, model)
    assert loaded.warnings == [
        "rounding outputs to float8 (output_activations): left out for 14 layers, such as "
        "model.layers.0.self_attn.q_proj"
    ]


def test_groups_of_other_modules_are_reported(tmp_path):
    """As llm-compressor has one for attention, also by an expression that names layers, too."""
    attention = {"targets": ["re:.*self_attn", "LlamaAttention"], "input_activations": FLOAT8}
    model = checkpoint(tmp_path, config_groups={"a": attention, "b": group()})
    loaded = load_checkpoint(tmp_path)
    assert_weights_are(loaded, model)
    assert loaded.warnings == [
        "config_groups.a of config.json rounds activations of re:.*self_attn, LlamaAttention, but "
        "no weights: it is left out"
    ]


@pytest.mark.parametrize(
    ("targets", "others"),
    [
        (["re:.*mlp"], ["Linear"]),
        (["re:.*mlp"], ["Module"]),  # which torch's layers are, too
        (["re:.*mlp"], ["re:.*self_attn", "re:.*zzz"]),
        ([f"model.layers.{i}.mlp.{n}_proj" for i in (0, 1) for n in ("up", "gate", "down")],
         ["re:.*proj"]),
        (["re:.*m[l]p.*"], ["re:model.*"]),  # of two expressions the first in alphabetical order
    ],
)  # fmt: skip
def test_targets_are_names_expressions_and_classes(tmp_path, targets, others):
    groups = {"a": group(targets=others), "b": group({**INT4, "num_bits": 8}, targets)}
    model = checkpoint(tmp_path, lambda name: 8 if "mlp" in name else 4, config_groups=groups)
    assert_weights_are(load_checkpoint(tmp_path), model)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"a": group(targets=["Conv2d", "re:.*mlp"])},
         r"q_proj: expected a group in config_groups whose targets name the layer or its class, "
         r"Linear, got Conv2d, re:\.\*mlp$"),
        ({"W4A16": ["Linear"]}, r"expected config_groups.W4A16 with targets, got \['Linear'\]"),
        ({"a": group({**INT4, "num_bits": 12})}, r"expected integers of 1 to 8 bits, .* int12"),
    ],
)  # fmt: skip
def test_groups_that_do_not_fit_are_refused(tmp_path, groups, message):
    checkpoint(tmp_path, config_groups=groups)
    with pytest.raises(ExportError, match=message):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("bits", [2, 3, 5, 6, 7, 8])
def test_integers_of_any_size(tmp_path, bits):
    groups = {"a": group({**INT4, "num_bits": bits})}
    model = checkpoint(tmp_path, lambda _: bits, config_groups=groups)
    assert_weights_are(load_checkpoint(tmp_path), model)


def test_words_of_whole_integers(tmp_path):
    """As before streams of bits: a word has ten integers of 3 bits, and two bits of none."""

    def words(values):
        rows, columns = values.shape
        packed = np.zeros((rows, -(-columns // 10)), np.uint32)
        for column in range(columns):
            packed[:, column // 10] |= values[:, column].astype(np.uint32) << (column % 10 * 3)
        return tensor(packed.view(np.int32))

    def pack(w):
        others = {"weight_packed": words(w.q), "weight_zero_point": words(w.zero.T).t()}
        return {**as_packed_tensors(w), **{k: v.contiguous() for k, v in others.items()}}

    groups = {"a": group({**INT4, "num_bits": 3})}
    model = checkpoint(tmp_path, lambda _: 3, pack, config_groups=groups)
    assert_weights_are(load_checkpoint(tmp_path), model)


STATIC = {"num_bits": 8, "type": "int", "strategy": "tensor", "dynamic": False}


@pytest.mark.parametrize(
    ("strategy", "dtype"), [("channel", "float32"), ("group", "float32"), ("group", "float16")]
)
def test_static_activations_of_int4(tmp_path, strategy, dtype):
    """They were rounded with a scale for each token instead."""
    rng, model, stored = np.random.default_rng(3), copy.deepcopy(tiny_model("llama")), {}
    step = 0.05  # which clips some

    def rounded(_, given):
        return ((given[0] / step).round().clamp(-128, 127) * step,)

    for name, layer in projections(model).items():
        size = layer.in_features if strategy == "channel" else GROUP
        w = Quantised(*layer.weight.shape, 4, rng, group=size, symmetric=True)
        tensors = {**as_packed_tensors(w), "input_scale": torch.tensor([step])}
        stored |= {f"{name}.{key}": value for key, value in tensors.items()}
        with torch.no_grad():
            layer.weight.copy_(w.weight)
        if strategy == "channel":
            layer.register_forward_pre_hook(rounded)
    weights = {**INT4, "strategy": strategy, "group_size": GROUP if strategy == "group" else None}
    config = tensors_config("pack-quantized")
    config["config_groups"] = {"a": group(weights, input_activations=STATIC)}
    save(tmp_path / "source", model, stored, config)
    options = {"dtype": dtype, "quant": "keep", "check": False}
    report = export_causal_lm(tmp_path / "source", tmp_path / "out", **options)
    assert report.gaps == []
    if strategy == "channel":
        assert report.integers == {"int4, static int8 activations": 8}
    else:  # as floats, or with activations of floats, which the report lists
        kept = [part["reason"] for part in report.kept]
        integers = {"int4, groups of 16": 8} if dtype == "float16" else {}
        assert report.integers == integers and len(kept) == 8
        what = "activations stay" if integers else "taken as"
        assert kept[0].startswith(f"{what} floats: no operator multiplies int4, groups of 16, st")
    if dtype == "float16":
        error = rms(errors(model, tmp_path / "out", PROVIDERS[0]))
        assert error <= 2 * rms(converted_errors(model, dtype))
        return
    for provider in PROVIDERS:
        # The same integers; a value next to a half may round the other way, one step of many.
        assert rms(errors(model, tmp_path / "out", provider)) <= 0.01


@pytest.mark.parametrize(
    ("bits", "dynamic", "dtype"),
    [(8, True, "float32"), (8, True, "bfloat16"), (8, False, "float32"), (4, True, "float32")],
)
def test_zero_points_of_weights_with_int8_activations(tmp_path, bits, dynamic, dtype):
    rng, model, stored = np.random.default_rng(3), copy.deepcopy(tiny_model("llama")), {}
    step = 0.05  # which clips some

    def rounded(_, given):
        largest = given[0].abs().amax(-1, keepdim=True)
        scale = largest / 127 if dynamic else torch.tensor(step)
        return ((given[0] / scale).round().clamp(-128, 127) * scale,)

    for name, layer in projections(model).items():
        w = Quantised(*layer.weight.shape, bits, rng, group=layer.in_features)
        tensors = as_packed_tensors(w)
        if bits == 8:
            zeros = tensor((w.zero - 128).astype(np.int8))
            tensors = {**as_int8_tensors(w), "weight_zero_point": zeros}
        tensors |= {} if dynamic else {"input_scale": torch.tensor([step])}
        stored |= {f"{name}.{key}": value for key, value in tensors.items()}
        with torch.no_grad():
            layer.weight.copy_(w.weight)
        layer.register_forward_pre_hook(rounded)
    config = tensors_config("int-quantized" if bits == 8 else "pack-quantized")
    weights = {**INT8, "num_bits": bits, "symmetric": False}
    inputs = {**STATIC, "dynamic": dynamic, "strategy": "token" if dynamic else "tensor"}
    config["config_groups"] = {"a": group(weights, input_activations=inputs)}
    save(tmp_path / "source", model, stored, config)
    options = {"dtype": dtype, "quant": "keep", "check": False}
    if bits == 4:
        options["dtype"] = "float16"  # which words of int4 need
    report = export_causal_lm(tmp_path / "source", tmp_path / "out", **options)
    assert report.gaps == [] and not report.kept
    kind = "dynamic" if dynamic else "static"
    assert report.integers == {f"int{bits}, {kind} int8 activations": 8}
    exact = dtype == "float32" and bits == 8
    for provider in PROVIDERS[: 2 if exact else 1]:
        # The same integers; a value next to a half may round the other way, one step of many.
        error = rms(errors(model, tmp_path / "out", provider))
        assert error <= (0.01 if exact else 2 * rms(converted_errors(model, options["dtype"])))


def test_zero_points_of_groups_with_int8_activations(tmp_path):
    """No operator multiplies them: the integers are kept, and activations stay floats."""
    rng, model, stored = np.random.default_rng(3), copy.deepcopy(tiny_model("llama")), {}
    for name, layer in projections(model).items():
        w = Quantised(*layer.weight.shape, 4, rng, group=GROUP)
        stored |= {f"{name}.{key}": value for key, value in as_packed_tensors(w).items()}
        with torch.no_grad():
            layer.weight.copy_(w.weight)
    config = tensors_config("pack-quantized")
    weights = {**INT4, "symmetric": False, "strategy": "group", "group_size": GROUP}
    inputs = {**INT8, "dynamic": True, "strategy": "token"}
    config["config_groups"] = {"a": group(weights, input_activations=inputs)}
    save(tmp_path / "source", model, stored, config)
    options = {"dtype": "float16", "quant": "keep", "check": False}
    report = export_causal_lm(tmp_path / "source", tmp_path / "out", **options)
    assert report.gaps == [] and report.integers == {f"int4, groups of {GROUP}": 8}
    why = f"no operator multiplies asymmetric int4, groups of {GROUP}, dynamic int8 activations"
    assert [part["reason"] for part in report.kept] == [f"activations stay floats: {why}"] * 8
    error = rms(errors(model, tmp_path / "out", PROVIDERS[0]))
    assert error <= 2 * rms(converted_errors(model, "float16"))


def converted_errors(model, dtype):
    """Return the differences of the model in a dtype from itself in float32."""
    converted = copy.deepcopy(model).to(getattr(torch, dtype))
    pairs = list(zip(PROMPTS, CONTINUATIONS, strict=True))
    return np.concatenate(
        [expected_logits(converted, *p) - expected_logits(model, *p) for p in pairs]
    )


@pytest.mark.parametrize(
    ("inputs", "what"),
    [
        ({**INT8, "symmetric": False, "dynamic": True, "strategy": "token"},
         "asymmetric int8 with a scale for each token"),
        ({**INT8, "dynamic": True, "strategy": "tensor"}, "int8 with a scale for each tensor"),
        ({**FLOAT8, "dynamic": True, "strategy": "token"}, "float8 with a scale for each token"),
        ({"num_bits": 4, "dynamic": True}, "int4"),
    ],
)  # fmt: skip
def test_activations_that_no_operator_rounds_stay_floats(tmp_path, inputs, what):
    model = checkpoint(
        tmp_path / "source", lambda _: 8, as_int8_tensors, format="int-quantized",
        config_groups={"a": group(INT8, input_activations=inputs)},
    )  # fmt: skip
    assert_weights_are(load_checkpoint(tmp_path / "source"), model)
    options = {"dtype": "float16", "quant": "keep", "check": False}
    report = export_causal_lm(tmp_path / "source", tmp_path / "out", **options)
    assert report.integers == {"int8": 8} and report.gaps == []
    assert report.warnings[0] == (
        f"rounding inputs to {what}: left out for 14 layers, such as "
        f"model.layers.0.self_attn.q_proj"
    )
    # Only float16 rounds, as it does in transformers.
    assert rms(errors(model, tmp_path / "out", PROVIDERS[0])) <= 2 * rms(halved_errors(model))
