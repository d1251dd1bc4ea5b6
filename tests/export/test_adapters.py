"""LoRA adapters: merged as peft merges them, or refused in a line."""

from __future__ import annotations

import copy
import json

import numpy as np
import peft
import pytest
import torch
from onnxruntime import InferenceSession
from onnxruntime_npu.errors import ArgumentError, ExportError
from onnxruntime_npu.exporter import export_causal_lm
from onnxruntime_npu.exporter.checkpoint import wrap
from onnxruntime_npu.exporter.weights.adapters import merge_adapters
from safetensors.torch import load_file, save_file

from .conftest import tiny_model

PLAIN = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj", "down_proj"]}
VARIANTS = {
    "plain": ("llama", PLAIN),
    "rslora": ("llama", {**PLAIN, "use_rslora": True}),
    "patterns": (
        "llama",
        {**PLAIN, "rank_pattern": {"v_proj": 2}, "alpha_pattern": {"layers.1.self_attn.q_proj": 3}},
    ),
    "gpt2": ("gpt2", {"r": 3, "lora_alpha": 5, "target_modules": ["c_attn", "c_proj"]}),
    "head": ("llama-tied", {"r": 2, "lora_alpha": 2, "target_modules": ["lm_head", "up_proj"]}),
}


def adapted(kind, settings, seed=5):
    """Return a model with a random adapter of peft."""
    config = peft.LoraConfig(task_type="CAUSAL_LM", **settings)
    model = peft.get_peft_model(tiny_model(kind), config).eval()
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn_like(parameter) / 4)
    return model


@pytest.fixture
def saved(tmp_path):
    model = adapted("llama", PLAIN)
    model.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


@pytest.mark.parametrize("name", VARIANTS)
def test_merged_model_computes_what_peft_computes(name, tmp_path):
    kind, settings = VARIANTS[name]
    expected = adapted(kind, settings)
    expected.save_pretrained(tmp_path, save_embedding_layers=False)
    model = wrap(tiny_model(kind), None).model
    ids = torch.arange(1, 8)[None]
    with torch.no_grad():
        before = model(ids).logits
        merge_adapters(model, [tmp_path])
        after, wanted = model(ids).logits, expected(ids).logits
    # The same sums in another order.
    torch.testing.assert_close(after, wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))
    assert (before - wanted).abs().max() > 0.01 * wanted.abs().max()


@pytest.mark.parametrize("kind", ["llama", "llama-tied"])
def test_adapters_of_a_head_have_the_weights_that_they_start_from(kind, tmp_path):
    """As peft saves them by default; also of two adapters, the second of a changed head."""
    settings, ids = {"r": 2, "target_modules": ["lm_head", "up_proj"]}, torch.arange(1, 8)[None]
    model, changes = wrap(tiny_model(kind), None).model, 0.0
    with torch.no_grad():
        for seed in (5, 6):
            expected = adapted(kind, settings, seed)
            expected.save_pretrained(tmp_path / f"{seed}")
            head = expected.get_output_embeddings()
            changes = changes + head.get_delta_weight("default")
            keys = load_file(tmp_path / f"{seed}" / "adapter_model.safetensors").keys()
            assert any(key.endswith("lm_head.base_layer.weight") for key in keys)
        merge_adapters(model, [tmp_path / "5", tmp_path / "6"])
        wanted = tiny_model(kind).lm_head.weight + changes
        torch.testing.assert_close(model.lm_head.weight.value(), wanted)
        assert torch.equal(
            model.get_input_embeddings().weight.value(), tiny_model(kind).model.embed_tokens.weight
        )
        assert model(ids).logits.isfinite().all()


def test_other_weights_than_the_models_are_refused(tmp_path):
    """Those of a model that was trained on, or has more tokens."""
    adapted("llama", {"r": 2, "target_modules": ["lm_head"]}).save_pretrained(tmp_path)
    model = tiny_model("llama")
    with torch.no_grad():
        model.lm_head.weight[3] += 1
    message = r"expected the model's own values of base_model.model.lm_head.base_layer.weight, got"
    with pytest.raises(ExportError, match=message):
        merge_adapters(wrap(model, None).model, [tmp_path])


def test_two_adapters_are_exported_with_the_model(tmp_path):
    model = tiny_model("llama")
    untouched = copy.deepcopy(model.state_dict())
    changes = {name: 0.0 for name in untouched}
    folders = []
    for seed in (5, 6):
        lora = adapted("llama", PLAIN, seed)
        lora.save_pretrained(tmp_path / f"{seed}")
        merged = lora.merge_and_unload().state_dict()
        changes = {n: c + merged[n] - untouched[n] for n, c in changes.items()}
        folders.append(tmp_path / f"{seed}")
    report = export_causal_lm(model, tmp_path / "out", adapters=folders, check=False)
    assert report.adapters == [str(folder) for folder in folders]
    assert all(torch.equal(untouched[n], value) for n, value in model.state_dict().items())
    model.load_state_dict({n: value + changes[n] for n, value in untouched.items()})
    ids = np.arange(1, 8)[None]
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": ids - 1}
    session = InferenceSession(tmp_path / "out" / "model.onnx", providers=["CPUExecutionProvider"])
    for value in session.get_inputs():
        if value.name.startswith("past"):
            feeds[value.name] = np.zeros((1, value.shape[1], 0, value.shape[3]), np.float32)
    with torch.no_grad():
        expected = model(torch.from_numpy(ids)).logits[0, -1].numpy()
    actual = session.run(["logits"], feeds)[0][0, 0]
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_dora": True}, r"LoRA adapter of weights alone, got one with DoRA: merge it with"),
        ({"bias": "all"}, r"got one with biases"),
        ({"modules_to_save": ["lm_head"]}, r"got one with whole modules"),
        ({"peft_type": "IA3"}, r"expected an adapter of peft_type LORA, got 'IA3'"),
        ({"init_lora_weights": "pissa"}, r"init_lora_weights 'pissa' changes the model's own"),
        ({"r": 8}, r"of model.layers.0.mlp.down_proj to be \[8, 112\] and \[64, 8\], got \[4"),
        ({"rank_pattern": {"(": 2}}, r"rank_pattern: expected regular expressions, got '\('"),
        ({"r": 0}, r"expected r > 0, got 0"),
        ({"lora_alpha": "much"}, r"expected lora_alpha > 0, got 'much'"),
    ],
)
def test_other_configurations_are_refused(saved, changes, message):
    config = json.loads((saved / "adapter_config.json").read_text())
    (saved / "adapter_config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(ExportError, match=message):
        merge_adapters(wrap(tiny_model("llama"), None).model, [saved])


def renamed(tensors, old, new):
    return {name.replace(old, new): value for name, value in tensors.items()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: renamed(t, "layers.1", "layers.7"), r"LlamaForCausalLM, which has no layer"),
        (lambda t: renamed(t, "q_proj", "rotary_emb"), r"has no layer|expected a linear layer"),
        (lambda t: renamed(t, "lora_A", "lora_embedding_A"), r"expected lora_A.weight and lora_B"),
        (lambda t: dict(list(t.items())[1:]), r"expected A and B of .*, got one of them"),
        (lambda t: {n: v * float("nan") for n, v in t.items()}, r"values that are not finite"),
        (lambda _t: {}, r"holds no layer"),
    ],
)
def test_weights_that_do_not_fit_are_refused(saved, change, message):
    path = saved / "adapter_model.safetensors"
    save_file(change(load_file(path)), path)
    with pytest.raises(ExportError, match=message):
        merge_adapters(wrap(tiny_model("llama"), None).model, [saved])


def test_adapters_are_a_sequence(saved, tmp_path):
    with pytest.raises(ArgumentError, match=r"expected adapters to be a sequence of directories"):
        export_causal_lm(tiny_model("llama"), tmp_path / "out", adapters=str(saved))


def test_a_directory_without_an_adapter_is_an_error(tmp_path):
    with pytest.raises(ArgumentError, match=r"adapter's directory with adapter_config.json, got"):
        merge_adapters(tiny_model("llama"), [tmp_path])
