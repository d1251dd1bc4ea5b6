"""Quantised checkpoints that are damaged, or of layouts that are not read, are refused."""

from __future__ import annotations

import json

import pytest
import torch
from onnxruntime_npu.errors import ExportError
from onnxruntime_npu.exporter.checkpoint import load_checkpoint

from .stored_integers import checkpoint, corrupt

LAYER = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(f"{LAYER}.scales"), rf"{LAYER}: expected a tensor scales, got g_idx, qw"),
        (
            lambda t: t.update({f"{LAYER}.scales": torch.ones(4, 63)}),
            rf"{LAYER}: expected scales of shape \[4, 64\], got \[4, 63\]",
        ),
        (
            lambda t: t[f"{LAYER}.scales"][1].fill_(float("nan")),
            rf"{LAYER}: expected finite scales, got some that are not",
        ),
        (
            lambda t: t.update({f"{LAYER}.qweight": t[f"{LAYER}.qweight"][:7]}),
            rf"{LAYER}: expected qweight with 2 to 8 bits for 64 integers, got 7 words",
        ),
        (
            lambda t: t.update({f"{LAYER}.qzeros": t[f"{LAYER}.qzeros"][:3]}),
            rf"{LAYER}: expected qzeros of shape \[4, 64\], got \[3, 64\]",
        ),
        (
            lambda t: t.update({f"{LAYER}.scales": torch.ones(5, 64)}),
            rf"{LAYER}: expected groups of 16 for 64 input features, got 5",
        ),
        (
            lambda t: t.update({f"{LAYER}.g_idx": torch.full((64,), 99, dtype=torch.int32)}),
            rf"{LAYER}: expected g_idx with 16 rows in each of 4 groups",
        ),
        (
            lambda t: t.update({"model.layers.0.mlp.experts.0.up.qweight": torch.zeros(1)}),
            r"expected quantised linear layers and experts, got .*experts.0.up, which is not",
        ),
    ],
    ids=["missing", "columns", "nan", "words", "zeros", "groups", "order", "experts"],
)
def test_damaged_checkpoints_are_refused(tmp_path, change, message):
    checkpoint(tmp_path / "source", "llama", "gptq")
    corrupt(tmp_path / "source", change)
    with pytest.raises(ExportError, match=message):
        load_checkpoint(tmp_path / "source")


ROTATED = {"targets": ["re:.*down_proj$"], "location": "input"}


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("gptq", {"checkpoint_format": "marlin"}, r"expected checkpoint_format gptq or gptq_v2"),
        ("gptq", {"is_marlin_format": True}, r"gptq or gptq_v2, got 'marlin'"),
        ("pack-quantized", {"format": "marlin-24"}, r"without zeros left out, .*got 'marlin-24'"),
        (
            "pack-quantized",
            {"sparsity_config": {"format": "sparse-24-bitmask"}},
            r"without zeros left out, such as pack-quantized, got 'sparse-24-bitmask'",
        ),
        (
            "awq",
            {"version": "gemv_fast"},
            r"expected the AWQ version gemm or gemv, got 'gemv_fast': quantise the model",
        ),
        ("pack-quantized", {"config_groups": {}}, r"expected a group in config_groups"),
        (
            "pack-quantized",
            {"transform_config": {"config_groups": {"R4": {"apply": [ROTATED]}}}},
            r"expected transforms of the weights .*, got transform_config with input",
        ),
    ],
)
def test_layouts_that_are_not_read_are_refused(tmp_path, name, change, message):
    checkpoint(tmp_path, "llama", name)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] |= change
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ExportError, match=message):
        load_checkpoint(tmp_path)
