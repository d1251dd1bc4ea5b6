"""Models that are exported without a cache: all tokens are run again at each step."""

from __future__ import annotations

import pytest
import torch
import transformers
from onnxruntime_npu import NPUModelForCausalLM
from onnxruntime_npu.errors import ArgumentError, ExportError
from onnxruntime_npu.exporter import export_causal_lm
from onnxruntime_npu.generation import CausalLM

from .conftest import PROMPTS, tiny_model

NPU, CPU = "NPUExecutionProvider", "CPUExecutionProvider"


def test_report_says_that_all_tokens_are_run_again(exported):
    _, directory, report = exported("openai-gpt", cache="dynamic")
    assert not report.gaps
    assert report.replaced["npu_gelu"]["emitted"] == 2
    reason = "expected a forward pass that takes past_key_values"
    assert report.kept[0]["reason"].startswith(
        f"without a cache, all tokens are run again: {reason}"
    )
    again = "every step runs all tokens of a row again, without a cache"
    assert any(warning.startswith(f"{again}: {reason}") for warning in report.warnings)
    assert not (directory / "genai_config.json").exists()


def test_generation_and_beams_are_those_of_transformers(exported):
    original, directory, _ = exported("openai-gpt", cache="dynamic")
    ours = NPUModelForCausalLM.from_pretrained(directory, providers=[NPU])
    prompt = torch.tensor([PROMPTS[1]])
    for options in ({}, {"num_beams": 3}):
        options |= {"do_sample": False, "max_new_tokens": 12}
        assert ours.generate(prompt, **options).tolist() == (
            original.generate(prompt, **options).tolist()
        )


def test_rows_end_at_the_model_s_positions(exported):
    _, directory, _ = exported("openai-gpt", cache="dynamic")
    model = CausalLM(directory, providers=[CPU])
    assert model.context_length == 128
    assert len(model.generate([[5] * 120], max_new_tokens=50).tokens[0]) == 8
    with pytest.raises(ArgumentError, match="than the 128 of the model's context, got 128"):
        model.generate([[5] * 128])


def test_written_file_is_checked_against_the_eager_model(tmp_path):
    report = export_causal_lm(tiny_model("roformer"), tmp_path, dtype="bfloat16", quant="w8a16")
    result = report.check["providers"][NPU]
    assert result["relative_error"] <= report.check["expected"]["logits"]
    assert report.replaced["npu_weight_quant_batchmatmul"]["emitted"] == 2 * 6 + 1
    assert not any(warning.startswith("check") for warning in report.warnings)


@pytest.mark.parametrize(
    ("model_type", "settings", "options", "reason"),
    [
        ("openai-gpt", {}, {"cache": "paged"}, r"with a paged cache: .*: pass cache='dynamic'"),
        ("xlnet", {"d_model": 64}, {}, "the logits of its tokens change with later tokens"),
        # Without the advice to take a growing cache, which is refused, too.
        ("xlnet", {"d_model": 64}, {"cache": "static"}, r"(?s)^(?!.*pass cache).*later tokens"),
        (
            "reformer",
            {
                "is_decoder": True,
                "attn_layers": ["local"],
                "attention_head_size": 16,
                "num_attention_heads": 4,
                "axial_pos_embds": False,
                "local_attn_chunk_length": 8,
            },
            {},
            "rows of up to 4096 tokens in one way, .* up to 8",
        ),
    ],
)
def test_refusals_name_the_reason(tmp_path, model_type, settings, options, reason):
    sizes = {"vocab_size": 97, "hidden_size": 64, "num_heads": 4, "n_layer": 2, "n_head": 4}
    config = transformers.AutoConfig.for_model(model_type, **{**sizes, **settings})
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(ExportError, match=reason):
        export_causal_lm(model, tmp_path, **options)
    assert not list(tmp_path.iterdir())
