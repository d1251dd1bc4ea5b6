"""BitNet's packed checkpoints, which transformers unpacks in every run.

The packer follows the layout's description, and shares no code with the reader.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from onnxruntime_npu.errors import ArgumentError, ExportError
from onnxruntime_npu.exporter import export_causal_lm
from onnxruntime_npu.exporter.checkpoint import load_checkpoint

from .conftest import tiny_model
from .stored_integers import corrupt, projections, save
from .test_causal_lm import PROVIDERS
from .test_quantized import errors, rms

AUTO = {"linear_class": "autobitlinear", "quantization_mode": "offline"}


def checkpoint(path, kind, **described):
    """Save a tiny model; return it in floats."""
    rng, model, stored = np.random.default_rng(3), tiny_model(kind), {}
    for name, layer in projections(model).items():
        q = rng.integers(-1, 2, layer.weight.shape)
        quarters = np.split((q + 1).astype(np.uint8), 4)  # of the outputs
        packed = sum(part << (2 * place) for place, part in enumerate(quarters))
        stored[f"{name}.weight"] = torch.from_numpy(packed.astype(np.uint8))
        scale = 2.0 ** -rng.integers(3, 6)  # which bfloat16 has
        saved = scale if described else 1 / scale
        stored[f"{name}.weight_scale"] = torch.tensor([saved], dtype=torch.bfloat16)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(q * scale))
    config = {"quant_method": "bitnet", "modules_to_not_convert": None, **described}
    return save(path, model, stored, config)


@pytest.mark.parametrize("described", [{}, AUTO])
def test_floats_are_what_the_integers_stand_for(tmp_path, described):
    model = checkpoint(tmp_path, "llama", **described)
    loaded = load_checkpoint(tmp_path).model
    for name, layer in projections(model).items():
        assert torch.equal(loaded.get_submodule(name).weight, layer.weight)


@pytest.mark.parametrize(("kind", "described"), [("llama", {}), ("bitnet", AUTO)])
def test_integers_are_multiplied_by_integers(tmp_path, kind, described):
    model = checkpoint(tmp_path / "source", kind, **described)
    options = {"dtype": "float16", "quant": "keep", "check": False}
    report = export_causal_lm(tmp_path / "source", tmp_path / "out", **options)
    layout = "int4, dynamic int8 activations"
    # llama is rebuilt with joined projections; those of bitnet share their rounded inputs.
    assert report.gaps == [] and report.integers == {layout: 8 if kind == "llama" else 14}
    assert report.replaced["npu_dynamic_quant"]["emitted"] == 8

    def rounded(_, given):
        step = given[0].abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127
        return ((given[0] / step).round() * step,)

    for layer in projections(model).values():
        layer.register_forward_pre_hook(rounded)
    for provider in PROVIDERS:
        # The same integers, but that a value next to a half may round the other way, one step of
        # 127: of those of float16 more are than of float32.
        assert rms(errors(model, tmp_path / "out", provider)) <= 0.02


def test_integers_of_4_bits_need_a_dtype_of_16_bits(tmp_path):
    checkpoint(tmp_path / "source", "llama")
    message = r"expected dtype float16 or bfloat16 with quant='keep' and weights of int4, dynamic"
    with pytest.raises(ArgumentError, match=message):
        export_causal_lm(tmp_path / "source", tmp_path / "out", quant="keep")


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ({**AUTO, "quantization_mode": "online"}, r"packed weights, .* got autobitlinear with onl"),
        ({**AUTO, "use_rms_norm": True}, r"expected bitnet without norms in layers, got use_rms_n"),
    ],
)
def test_other_layers_are_refused(tmp_path, described, message):
    checkpoint(tmp_path, "llama", **AUTO)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] |= described
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ExportError, match=message):
        load_checkpoint(tmp_path)


NAME = "model.layers.0.mlp.up_proj"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t[f"{NAME}.weight"].fill_(255), rf"{NAME}: expected a weight of -1, 0 and 1"),
        (lambda t: t.update({f"{NAME}.weight": torch.zeros(3, 64).byte()}),
         rf"{NAME}: expected weight of shape \[28, 64\], got \[3, 64\]"),
        (lambda t: t.pop(f"{NAME}.weight_scale"), rf"{NAME}: expected a tensor weight_scale"),
        (lambda t: t.update({f"{NAME}.bias": torch.ones(112)}), r"layers without bias, got some"),
    ],
)  # fmt: skip
def test_damaged_layers_are_refused(tmp_path, change, message):
    checkpoint(tmp_path, "llama", **AUTO)
    corrupt(tmp_path, change)
    with pytest.raises(ExportError, match=message):
        load_checkpoint(tmp_path)
