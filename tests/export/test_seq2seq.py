"""Encoder-decoders: fused parts, logits and generated tokens equal to transformers', errors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnxruntime_genai as og
import pytest
import tokenizers
import torch
import transformers
from onnxruntime_npu import NPUModelForSeq2SeqLM, cli, export_seq2seq
from onnxruntime_npu.errors import ArgumentError, ExportError
from onnxruntime_npu.generation import Seq2SeqLM
from onnxruntime_npu.sampling import Sampler

from .conftest import Forced, enlarge, export_once, model_kept

PROVIDERS = ("NPUExecutionProvider", "CPUExecutionProvider")
SIZES = {
    "vocab_size": 97,
    "d_model": 64,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 112,
    "decoder_ffn_dim": 112,
}
BART = {
    **SIZES,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 3,
    "forced_eos_token_id": None,
    "pad_token_id": 1,
}
T5 = {
    "vocab_size": 97,
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 112,
    "num_layers": 2,
    "num_heads": 4,
    # Distances of the test's rows reach the buckets of several distances.
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 16,
    "decoder_start_token_id": 0,
}
WHISPER = {
    **SIZES,
    "num_mel_bins": 16,
    "max_target_positions": 40,
    "pad_token_id": 1,
    "bos_token_id": 2,
    "eos_token_id": 2,
    "decoder_start_token_id": 3,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}
FUSED_BART = (
    {"npu_fusion_attention": 1, "npu_gelu": 1, "npu_layer_norm_eval": 3},
    {
        "npu_fused_infer_attention_score": 1,
        "npu_fusion_attention": 1,
        "npu_gelu": 1,
        "npu_layer_norm_eval": 4,
    },
)
FUSED_T5 = (
    {"npu_add_rms_norm": 4, "npu_fusion_attention": 2, "npu_rms_norm": 1},
    {"npu_add_rms_norm": 6, "npu_fusion_attention": 4, "npu_rms_norm": 1},
)
MODELS = {
    "bart": (transformers.BartForConditionalGeneration, BART, FUSED_BART),
    "m2m_100": (transformers.M2M100ForConditionalGeneration, BART, None),
    "marian": (transformers.MarianMTModel, {**BART, "activation_function": "swish"}, None),
    "mbart": (transformers.MBartForConditionalGeneration, BART, None),
    "mt5": (
        transformers.MT5ForConditionalGeneration,
        {**T5, "feed_forward_proj": "gated-gelu"},
        None,
    ),
    "pegasus": (transformers.PegasusForConditionalGeneration, BART, None),
    "t5": (transformers.T5ForConditionalGeneration, T5, FUSED_T5),
    "whisper": (
        transformers.WhisperForConditionalGeneration,
        WHISPER,
        (
            {"npu_fusion_attention": 1, "npu_gelu": 1, "npu_layer_norm_eval": 3},
            FUSED_BART[1],
        ),
    ),
}
# Kinds that share their layers with another one: --exhaustive runs them.
REPEATED = ("m2m_100", "marian", "mbart", "mt5", "pegasus")
PROMPT, FORCED = [3, 41, 17], [60, 5, 33, 8]


def tiny_model(kind, **changes):
    """Return a random model whose activations are large enough for mistakes to show."""
    model_class, settings, _ = MODELS[kind]
    torch.manual_seed(5)
    config = transformers.AutoConfig.for_model(kind, **{**settings, **changes})
    model = model_class(config).eval()
    return enlarge(model, embeddings=lambda p: p.copy_(0.3 * torch.randn_like(p)))


def source_of(model):
    """Return the encoder's inputs by name: three rows, of texts with other lengths."""
    generator = torch.Generator().manual_seed(9)
    config = model.config
    if model.main_input_name == "input_features":
        shape = (3, config.num_mel_bins, 2 * config.max_source_positions)
        return {"input_features": torch.randn(shape, generator=generator)}
    ids = torch.randint(4, 97, (3, 21), generator=generator)
    mask = (torch.arange(21) < torch.tensor([[21], [4], [17]])).long()
    return {"input_ids": ids * mask + config.pad_token_id * (1 - mask), "attention_mask": mask}


def arrays(source):
    return {name: tensor.numpy() for name, tensor in source.items()}


def forced_logits(directory, provider, source):
    """Return the logits [B, S, V] after the prompt and after each forced token but the last."""
    sampler = Forced([FORCED] * 3)
    model = Seq2SeqLM(directory, providers=[provider])
    model.stop_tokens = frozenset()
    model.generate_from(arrays(source), prompt=PROMPT, max_new_tokens=len(FORCED), sampler=sampler)
    return np.stack(sampler.logits, 1)


def expected_logits(model, source):
    ids = torch.tensor([PROMPT + FORCED[:-1]]).repeat(3, 1)
    with torch.no_grad():
        logits = model(**source, decoder_input_ids=ids).logits.float()
    return logits[:, len(PROMPT) - 1 :].numpy()


def words():
    """Return a tokenizer of the words w0 to w96, with T5's special tokens."""
    vocabulary = {"<pad>": 0, "</s>": 1, **{f"w{i}": i for i in range(2, 97)}}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<pad>"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="</s>"
    )


def model_and_export(factory, kind):
    """Return (model, directory, report) of an export that other files and workers share."""
    model = tiny_model(kind)

    def export(place):
        with model_kept(model):
            return export_seq2seq(model, place, tokenizer=words() if kind == "t5" else None)

    return model, *export_once(factory, f"seq2seq_{kind}", export)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Return a function that gives (model, directory, report) of an export, made once."""
    made = {}

    def get(kind):
        if kind not in made:
            made[kind] = model_and_export(tmp_path_factory, kind)
        return made[kind]

    return get


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.exhaustive if kind in REPEATED else ())
        for kind in MODELS
    ],
)
def test_logits_and_generated_tokens_equal_those_of_transformers(exported, kind):
    model, directory, report = exported(kind)
    assert report.gaps == [] and report.kept == []
    assert all(part.without_body == [] for part in report.parts.values())
    if fused := MODELS[kind][2]:
        emitted = [
            {op: counts["emitted"] for op, counts in part.replaced.items()}
            for part in report.parts.values()
        ]
        assert emitted == list(fused)
    source = source_of(model)
    expected = expected_logits(model, source)
    equals_transformers(directory, source, expected, generated(model, source))


def equals_transformers(directory, source, expected, tokens):
    """Compare logits and generated tokens of an export, on the NPU and by bodies on the CPU."""
    # Float32 sums in another order; see exporter/proof.py.
    tolerance = 1e-4 * np.abs(expected).max()
    assert np.abs(expected[0] - expected[1]).max() > 100 * tolerance  # the source matters
    for provider in PROVIDERS:
        actual = forced_logits(directory, provider, source)
        np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance)
        result = Seq2SeqLM(directory, providers=[provider]).generate_from(
            arrays(source), max_new_tokens=9
        )
        assert result.tokens == tokens


def generated(model, source, **options):
    """Return the tokens that transformers generates greedily, up to the stop token."""
    with torch.no_grad():
        rows = model.generate(
            **source, max_new_tokens=9, do_sample=False, num_beams=1, **options
        ).tolist()
    if model.main_input_name == "input_ids":
        rows = [row[1:] for row in rows]  # Whisper's do not begin with the start token
    stop = model.generation_config.eos_token_id
    return [row[: row.index(stop)] if stop in row else row for row in rows]


@pytest.mark.parametrize(
    "kind",
    [
        "t5",
        pytest.param("whisper", marks=pytest.mark.slow),
        *(
            pytest.param(kind, marks=pytest.mark.exhaustive)
            for kind in MODELS
            if kind not in ("t5", "whisper")
        ),
    ],
)
def test_static_cache_is_written_in_place_and_gives_the_tokens_of_transformers(tmp_path, kind):
    model = tiny_model(kind)
    model.save_pretrained(tmp_path / "in")
    # As it was saved: marian computes its positions, which `tiny_model` enlarges, again.
    model = type(model).from_pretrained(tmp_path / "in").eval()
    out = tmp_path / "out"
    arguments = ["export-seq2seq", str(tmp_path / "in"), str(out), "--cache", "static"]
    assert cli.main(arguments) == 0
    report = json.loads((out / "export_report.json").read_text())["parts"]["decoder_model.onnx"]
    assert report["cache"] == "static" and report["gaps"] == report["kept"] == []
    layers = model.config.num_layers if kind in ("t5", "mt5") else 1
    # Attention over own tokens reads lengths, that over the source a mask.
    assert report["nodes"]["npu::NPUFusedInferAttentionScore"] == layers
    assert report["nodes"]["npu::NPUFusionAttention"] == layers
    assert report["nodes"]["npu::NPUScatterNdUpdate"] == 2 * layers
    source = source_of(model)
    expected, tokens = expected_logits(model, source), generated(model, source)
    tolerance = 1e-4 * np.abs(expected).max()  # float32 sums in another order; see proof.py
    for provider in PROVIDERS:
        actual = forced_logits(out, provider, source)
        np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance)
        lm = Seq2SeqLM(out, providers=[provider])
        assert lm.generate_from(arrays(source), max_new_tokens=9).tokens == tokens
    assert not (out / "genai_config.json").exists()

    beams = {"num_beams": 3, "max_new_tokens": 7, "do_sample": False, "eos_token_id": None}
    static = NPUModelForSeq2SeqLM.from_pretrained(out)
    with torch.no_grad():
        rows = transformers.GenerationMixin.generate(model, **source, **beams).tolist()
    assert static.generate(**source, **beams).tolist() == rows
    ids = torch.tensor([PROMPT + FORCED] * 3)
    encoded = static.get_encoder()(**source)
    mask = source.get("attention_mask")
    first = static(encoder_outputs=encoded, attention_mask=mask, decoder_input_ids=ids[:, :4])
    second = static(
        encoder_outputs=encoded, attention_mask=mask, decoder_input_ids=ids[:, 4:-1],
        past_key_values=first.past_key_values,
    )  # fmt: skip
    np.testing.assert_allclose(second.logits, expected[:, 2:], rtol=0, atol=tolerance)
    with pytest.raises(ArgumentError, match="the cache takes 3 tokens, got 0 and 4 more"):
        static(
            encoder_outputs=encoded, decoder_input_ids=ids[:, :4],
            past_key_values=static.new_cache(3),
        )  # fmt: skip


def test_tokens_are_suppressed_and_forced_as_generation_config_says(exported, tmp_path):
    model, directory, _ = exported("t5")
    source = source_of(model)
    plain = generated(model, source)
    first, later = plain[0][0], plain[0][2]
    rules = {
        "suppress_tokens": [later],
        "begin_suppress_tokens": [first],
        "bad_words_ids": [[plain[1][0]], [5, 6]],
        "forced_eos_token_id": 1,
    }
    shutil.copytree(directory, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "generation_config.json"
    settings = json.loads(path.read_text())
    for chosen in (rules, {"forced_bos_token_id": 7, "forced_eos_token_id": 1}):
        path.write_text(json.dumps({**settings, **chosen}))
        lm = Seq2SeqLM(tmp_path)
        result = lm.generate_from(arrays(source), max_new_tokens=9)
        assert result.tokens == generated(model, source, **chosen) != plain
        assert result.finish_reasons == ["stop"] * 3
        # Sampling obeys them, too; a seed repeats it.
        draws = [
            lm.generate_from(
                arrays(source), max_new_tokens=9, sampler=Sampler(temperature=5.0, seed=4)
            ).tokens
            for _ in range(2)
        ]
        assert draws[0] == draws[1] and max(map(len, draws[0])) == 8
        assert {row[0] for row in draws[0]} == {7} or later not in np.concatenate(draws[0])


def test_text_goes_through_the_tokenizer(exported, capsys):
    model, directory, _ = exported("t5")
    texts = ["w9 w8 w7 w40", "w50"]
    tokens = words()(texts, padding=True, return_tensors="pt")
    source = {name: tokens[name] for name in ("input_ids", "attention_mask")}
    streamed = []
    result = Seq2SeqLM(directory).generate(texts, max_new_tokens=9, on_text=streamed.append)
    assert result.tokens == generated(model, source)
    assert result.texts == [" ".join(f"w{token}" for token in row) for row in result.tokens]
    assert "".join(streamed) == result.texts[0]
    options = ["--prompt", texts[0], "--greedy", "--max-new-tokens", "9", "--provider", "cpu"]
    capsys.readouterr()
    assert cli.main(["generate", str(directory), *options]) == 0
    assert capsys.readouterr().out.strip() == result.texts[0]


@pytest.mark.parametrize("provider", ["cpu", "npu"])
def test_onnxruntime_genai_runs_the_directory_of_whisper(genai, exported, provider):
    model, directory, _ = exported("whisper")
    source = source_of(model)
    config = og.Config(str(directory))
    if provider == "npu":
        config.append_provider("NPUExecutionProvider")
    loaded = og.Model(config)
    parameters = og.GeneratorParams(loaded)
    parameters.set_search_options(batch_size=3, max_length=10)
    generator = og.Generator(loaded, parameters)
    inputs = og.NamedTensors()
    inputs["input_features"] = source["input_features"].numpy()
    inputs["input_ids"] = np.full((3, 1), model.config.decoder_start_token_id, np.int32)
    generator.set_inputs(inputs)
    while not generator.is_done():
        generator.generate_next_token()
    stop = model.config.eos_token_id
    rows = [generator.get_sequence(row)[1:].tolist() for row in range(3)]
    rows = [row[: row.index(stop)] if stop in row else row for row in rows]
    assert rows == generated(model, source)


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        ({"input_ids": np.ones((1, 2), np.int64)}, {}, "expected the encoder's inputs input_ids, "),
        ({"attention_mask": np.ones(2, np.int64)}, {}, r"attention_mask of shape .*, got \[2\]"),
        ({"input_ids": np.ones((0, 2), np.int64)}, {}, r"input_ids of shape .*, got \[0, 2\]"),
        ({"input_ids": np.ones((1, 2), np.float32)}, {}, "input_ids of int64, got float32"),
        ({"attention_mask": np.ones((3, 2), np.int64)}, {}, "inputs of as many rows"),
        ({}, {"prompt": []}, "expected a prompt of tokens from 0 to 96"),
        ({}, {"prompt": [97]}, "expected a prompt of tokens from 0 to 96"),
        ({}, {"prompt": ["a"]}, "expected a prompt of token ids"),
        ({}, {"prompt": [True]}, "expected a prompt of token ids: .*bool"),
        ({}, {"max_new_tokens": 0}, "max_new_tokens expected a whole number from 1"),
        ({}, {"sampler": 3}, "expected a Sampler or a function"),
    ],
)
def test_wrong_inputs_raise(exported, inputs, options, message):
    _, directory, _ = exported("t5")
    given = {name: np.ones((1, 2), np.int64) for name in ("input_ids", "attention_mask")}
    given = inputs if "encoder's" in message else {**given, **inputs}
    with pytest.raises(ArgumentError, match=message):
        Seq2SeqLM(directory, providers=PROVIDERS[1:]).generate_from(given, **options)


def test_source_that_is_longer_than_the_encoder_was_made_for_is_an_error(exported):
    _, directory, _ = exported("whisper")
    features = np.zeros((1, 16, 3002), np.float32)
    with pytest.raises(ArgumentError, match=r"input_features of shape .*, got \[1, 16, 3002\]"):
        Seq2SeqLM(directory).generate_from({"input_features": features})
    with pytest.raises(ArgumentError, match="than the 40 of the decoder's context, got 40"):
        Seq2SeqLM(directory).generate_from(
            {"input_features": features[..., :3000]}, prompt=[3] * 40
        )


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"dtype": "int8"}, ArgumentError, "expected dtype to be one of"),
        ({"opset": 7}, ArgumentError, "expected an opset from 18 to 23"),
        ({"cache": "paged"}, ArgumentError, "got 'paged': .* engine has no encoder-decoders$"),
        ({"cache": "ring"}, ArgumentError, "cache to be one of dynamic, static, got 'ring'$"),
        ({"quant": "w8a8"}, ArgumentError, "expected quant to be one of none, w8a16"),
        ({"quant": "w4a16"}, ArgumentError, "expected dtype float16 or bfloat16 with quant="),
        ({"model_or_dir": "nowhere"}, ArgumentError, "nowhere is no model directory"),
        ({"model_or_dir": torch.nn.Linear(2, 2)}, ExportError, "expected an encoder-decoder"),
        (
            {
                "model_or_dir": transformers.BertModel(
                    transformers.BertConfig(hidden_size=8, num_attention_heads=2, vocab_size=9)
                )
            },
            ExportError,
            "cannot export BertModel: expected an encoder-decoder",
        ),
    ],
)
def test_wrong_arguments_raise_and_write_nothing(tmp_path, arguments, error, message):
    with pytest.raises(error, match=message):
        export_seq2seq(**{"model_or_dir": None, "out_dir": tmp_path / "out", **arguments})
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_quantised_weights_are_in_the_file_that_uses_them(tmp_path, capsys):
    model = tiny_model("whisper")
    model.save_pretrained(tmp_path / "in")
    arguments = ["export-seq2seq", str(tmp_path / "in"), str(tmp_path / "out")]
    assert cli.main([*arguments, "--quant", "w8a8_dynamic"]) == 0
    parts = json.loads((tmp_path / "out" / "export_report.json").read_text())["parts"]
    assert [part["gaps"] + part["kept"] for part in parts.values()] == [[], []]
    emitted = [part["nodes"]["npu::NPUQuantMatmul"] for part in parts.values()]
    # Six of a layer of the encoder and two for the keys and values of the decoder's, which has four
    # for its own tokens, two for queries and results over the source, and two of the MLP.
    assert emitted == [8, 8]
    source = source_of(model)
    exact = expected_logits(model, source)
    for provider in PROVIDERS:
        error = forced_logits(tmp_path / "out", provider, source) - exact
        # Rounding to 8 bits has an error of some 0.4 % at each of a dozen steps.
        assert 1e-4 < np.sqrt((error**2).mean() / (exact**2).mean()) < 0.03


def test_quantised_checkpoint_is_refused(tmp_path):
    config = {"model_type": "t5", "quantization_config": {"quant_method": "gptq", "bits": 4}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ExportError, match="expected float weights, got integers of gptq"):
        export_seq2seq(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_model_whose_decoder_has_no_such_cache_is_refused(tmp_path, monkeypatch):
    model = tiny_model("t5")
    forward = type(model).forward

    def without_cache(self, *args, past_key_values=None, **options):
        return forward(self, *args, **{**options, "use_cache": False})

    monkeypatch.setattr(type(model), "forward", without_cache)
    message = r"cannot export T5ForConditionalGeneration \(t5\): expected a cache of keys"
    with pytest.raises(ExportError, match=message):
        export_seq2seq(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("t5", "float16"),
        ("whisper", "bfloat16"),
        pytest.param("t5", "bfloat16", marks=pytest.mark.exhaustive),
        pytest.param("whisper", "float16", marks=pytest.mark.exhaustive),
    ],
)
def test_command_exports_in_16_bits_as_exactly_as_transformers(tmp_path, capsys, kind, dtype):
    model = tiny_model(kind)
    model.save_pretrained(tmp_path / "in")
    capsys.readouterr()
    arguments = ["export-seq2seq", str(tmp_path / "in"), str(tmp_path / "out"), "--dtype", dtype]
    assert cli.main(arguments) == 0
    lines = capsys.readouterr().out.strip().splitlines()
    first, second = (line for line in lines if not line.startswith("replaced: "))
    assert f"encoder_model.onnx: {type(model).__name__}, {dtype}, " in first
    assert f"decoder_model.onnx: {type(model).__name__}, {dtype}, " in second
    assert not first.endswith("peak memory 0 MiB") and not second.endswith("peak memory 0 MiB")
    report = json.loads((tmp_path / "out" / "export_report.json").read_text())
    assert [part["gaps"] for part in report["parts"].values()] == [[], []]
    source = source_of(model)
    exact = expected_logits(model, source)
    halved = model.to(getattr(torch, dtype))
    rounded = {k: v.to(halved.dtype) if v.is_floating_point() else v for k, v in source.items()}
    theirs = expected_logits(halved, rounded) - exact
    # The CPU provider multiplies no matrices of bfloat16.
    for provider in PROVIDERS[: 1 if dtype == "bfloat16" else 2]:
        ours = forced_logits(tmp_path / "out", provider, source) - exact
        # Both round at every step; the rounding errors are of similar size, not equal.
        assert np.sqrt((ours**2).mean()) <= 2 * np.sqrt((theirs**2).mean())


def test_documentation_lists_every_tested_model():
    page = (Path(__file__).parents[2] / "docs" / "encoders.md").read_text()
    assert [kind for kind in MODELS if f"`{kind}`" not in page] == []
