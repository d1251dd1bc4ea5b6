"""Small models of transformers train on npu: losses and parameters match the CPU, no fallback."""

import copy

import pytest
import torch

transformers = pytest.importorskip("transformers")

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
TOKENS = 50


def bert():
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(vocab_size=TOKENS, max_position_embeddings=32, **SIZES)
    )


def gpt2():
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=TOKENS, n_positions=32, n_embd=32, n_layer=2, n_head=4)
    )


def llama():
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(vocab_size=TOKENS, num_key_value_heads=2, **SIZES)
    )


def t5():
    config = transformers.T5Config(
        vocab_size=TOKENS, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4,
        decoder_start_token_id=0,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


def vit():
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(image_size=16, patch_size=4, num_labels=3, **SIZES)
    )


def resnet():
    return transformers.ResNetForImageClassification(
        transformers.ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_labels=3
        )
    )


def inputs_of(name):
    generator = torch.Generator().manual_seed(1)
    if name == "resnet":
        return {
            "pixel_values": torch.randn(2, 3, 32, 32, generator=generator),
            "labels": torch.tensor([0, 2]),
        }
    if name == "vit":
        return {
            "pixel_values": torch.randn(2, 3, 16, 16, generator=generator),
            "labels": torch.tensor([0, 2]),
        }
    ids = torch.randint(1, TOKENS, (2, 10), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, 7:] = 0
    if name == "bert":
        return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([0, 1])}
    return {"input_ids": ids, "attention_mask": mask, "labels": ids}


def losses(model, inputs, steps=3, half=None, fused=False):
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=fused)
    scaler = torch.amp.GradScaler("npu", init_scale=256.0, enabled=half == torch.float16)
    found = []
    for _ in range(steps):
        with torch.autocast("npu", dtype=half, enabled=half is not None):
            loss = model(**inputs).loss
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("make", [bert, gpt2, llama, t5, vit, resnet], ids=lambda f: f.__name__)
@pytest.mark.usefixtures("no_fallback")
def test_training_steps(make):
    torch.manual_seed(0)
    model = make().eval()  # no dropout: its random numbers differ from the CPU's
    inputs = inputs_of(make.__name__)
    device_inputs = {name: t.npu() for name, t in inputs.items()}
    on_npu = copy.deepcopy(model).npu()
    for half in (torch.bfloat16, torch.float16):
        found = losses(copy.deepcopy(on_npu), device_inputs, half=half, fused=True)
        # Operands of 8 or 11 significant bits.
        torch.testing.assert_close(
            found, losses(copy.deepcopy(model), inputs), rtol=3e-2, atol=3e-2
        )
    found = losses(on_npu, device_inputs)
    torch.testing.assert_close(found, losses(model, inputs), rtol=1e-4, atol=1e-4)
    on_npu.train()  # dropout draws on the device
    assert losses(on_npu, device_inputs, 1)[0] < 10
