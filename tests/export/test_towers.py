"""CLIP and SigLIP: the exported towers give the logits of transformers' whole model."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch
import transformers
from onnxruntime_npu import cli, export_encoder
from onnxruntime_npu.errors import ArgumentError

PROVIDERS = ("NPUExecutionProvider", "CPUExecutionProvider")
LAYERS = {
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "projection_size": 64,
}
TEXT = {**LAYERS, "vocab_size": 97, "max_position_embeddings": 16, "eos_token_id": 96}
IMAGE = {**LAYERS, "image_size": 32, "patch_size": 8}


def tiny_model(kind):
    """Return a random model whose activations are large enough for mistakes to show."""
    torch.manual_seed(5)
    config = transformers.AutoConfig.for_model(
        kind, text_config=TEXT, vision_config=IMAGE, projection_dim=48
    )
    model = transformers.AutoModel.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 and "logit" not in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
            elif "embed" not in name and parameter.dim() > 1:
                parameter.mul_(3)
        if hasattr(model, "logit_bias"):
            model.logit_bias.fill_(-1.5)
        model.logit_scale.fill_(2.5)
    return model


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_similarities_of_the_towers_equal_transformers(tmp_path, capsys, caplog, kind):
    model = tiny_model(kind)
    model.save_pretrained(tmp_path / "in")
    capsys.readouterr()
    directories = {tower: tmp_path / tower for tower in ("text", "image")}
    command = ["export-encoder", str(tmp_path / "in"), str(directories["text"]), "--tower", "text"]
    assert cli.main([*command, "--normalize"]) == 0
    printed = capsys.readouterr().out
    assert f"{type(model).__name__}, float32, pooling pooler, length 1" in printed
    caplog.clear()
    report = export_encoder(model, directories["image"], tower="image", normalize=True)
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    assert report.gaps == [] and report.kept == []
    assert "npu_fusion_attention" in report.replaced

    generator = torch.Generator().manual_seed(9)
    ids = torch.randint(2, 95, (3, 11), generator=generator)
    mask = (torch.arange(11) < torch.tensor([[11], [4], [9]])).long()
    ids[torch.arange(3), mask.sum(1) - 1] = 96  # the last token of a text
    given = {"input_ids": ids, "attention_mask": mask}
    given["pixel_values"] = torch.randn(2, 3, 32, 32, generator=generator)
    with torch.no_grad():
        expected = model(**given).logits_per_image
    for provider in PROVIDERS:
        vectors = {}
        for tower, directory in directories.items():
            session = onnxruntime.InferenceSession(
                str(directory / "model.onnx"), providers=[provider]
            )
            names = [value.name for value in session.get_inputs()]
            inputs = {name: given[name].numpy() for name in names}
            vectors[tower] = session.run([f"{tower}_embeds"], inputs)[0]
            constants = session.get_modelmeta().custom_metadata_map
        logits = vectors["image"] @ vectors["text"].T * float(constants["logit_scale"])
        logits += float(constants.get("logit_bias", 0))
        assert np.ptp(logits) > 1  # texts and images are told apart
        # Vectors of length 1 in float32, times a scale of 12.
        np.testing.assert_allclose(logits, expected, rtol=0, atol=2e-4)


def test_tower_is_named_for_models_with_two_and_no_others(tmp_path):
    clip = tiny_model("clip")
    with pytest.raises(ArgumentError, match="expected tower='text' or tower='image' for CLIPModel"):
        export_encoder(clip, tmp_path / "out")
    with pytest.raises(ArgumentError, match="expected tower to be one of text, image, got 'audio'"):
        export_encoder(clip, tmp_path / "out", tower="audio")
    with pytest.raises(ArgumentError, match="expected no tower for CLIPTextModel"):
        export_encoder(clip.text_model, tmp_path / "out", tower="text")
    assert not (tmp_path / "out").exists()
