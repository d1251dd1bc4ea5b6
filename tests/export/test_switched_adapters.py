"""LoRA adapters that each run chooses: what the merged model computes, in every runtime."""

from __future__ import annotations

import copy
import json

import numpy as np
import onnxruntime as ort
import onnxruntime_genai as og
import pytest
import torch
from onnxruntime_npu import cli
from onnxruntime_npu.errors import ArgumentError, ExportError
from onnxruntime_npu.exporter import export_causal_lm
from onnxruntime_npu.generation import CausalLM

from .conftest import CONTINUATIONS, PROMPTS, Forced, expected_logits, tiny_model
from .test_adapters import PLAIN, adapted
from .test_causal_lm import PROVIDERS
from .test_quantized import rms

pytestmark = pytest.mark.slow  # several exports; merged adapters are exported in test_adapters.py

TOLERANCE = 1e-4  # as in test_causal_lm.py
# Two adapters of different layers and ranks: q, k and v are joined, and so are gate and up.
SETTINGS = {
    "some": {**PLAIN, "rank_pattern": {"v_proj": 2}},
    "all": {"r": 3, "lora_alpha": 4, "target_modules": "all-linear", "use_rslora": True},
}
ORIGINAL = {"wide": {"r": 3, "lora_alpha": 5, "target_modules": ["c_attn", "c_proj"]}}


def saved(folder, kind, settings):
    """Save random adapters; return their directories and the merged models."""
    folders, merged = {}, {}
    for seed, (name, given) in enumerate(settings.items()):
        model = adapted(kind, given, seed)
        model.save_pretrained(folder / name, save_embedding_layers=False)
        folders[name], merged[name] = folder / name, model.merge_and_unload()
    return folders, merged


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a function that gives (directory, models by adapter, report) of an export."""
    exports = {}

    def get(kind, cache, **options):
        key = (kind, cache, *options.values())
        if key not in exports:
            base = tmp_path_factory.mktemp("switched")
            folders, merged = saved(base, kind, SETTINGS if kind == "llama" else ORIGINAL)
            report = export_causal_lm(
                tiny_model(kind), base / "out", cache=cache, switched_adapters=folders,
                check=False, **options,
            )  # fmt: skip
            exports[key] = base / "out", {None: tiny_model(kind), **merged}, report
        return exports[key]

    return get


def logits_of(model, adapter):
    sampler = Forced(CONTINUATIONS)
    model.stop_tokens = frozenset()
    model.generate_tokens(
        PROMPTS, max_new_tokens=len(CONTINUATIONS[0]), sampler=sampler, adapter=adapter
    )
    return np.stack(sampler.logits, axis=1)


def assert_equal(actual, model):
    for row, pair in enumerate(zip(PROMPTS, CONTINUATIONS, strict=True)):
        np.testing.assert_allclose(actual[row], expected_logits(model, *pair), 0, TOLERANCE)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    ("kind", "cache"),
    [("llama", "dynamic"), ("llama", "static"), ("llama", "paged"), ("gpt2", "dynamic")],
)
def test_each_run_has_the_adapter_that_it_names(made, kind, cache, provider):
    directory, models, report = made(kind, cache)
    assert report.gaps == [] and report.switched_adapters.keys() == models.keys() - {None}
    model = CausalLM(directory, providers=[provider])
    # The first again after the others, and each for several steps, which a graph replays.
    for adapter in (None, *models, None):
        assert_equal(logits_of(model, adapter), models[adapter])
    plain, changed, *_ = (expected_logits(m, PROMPTS[0], CONTINUATIONS[0]) for m in models.values())
    assert np.abs(plain - changed).max() > 100 * TOLERANCE


def test_quantised_weights_keep_their_adapters(made):
    directory, models, report = made("llama", "dynamic", dtype="bfloat16", quant="w8a16")
    assert report.gaps == []
    model = CausalLM(directory)
    for adapter in models:
        exact = np.stack(
            [expected_logits(models[adapter], *p) for p in zip(PROMPTS, CONTINUATIONS, strict=True)]
        )
        errors = logits_of(model, adapter) - exact
        # 8 bits of weights and of activations; without its adapter the error is ten times as large.
        assert np.sqrt((errors**2).mean()) < 0.05 * exact.std()


@pytest.mark.parametrize("provider", PROVIDERS)
def test_ranks_differ_among_projections(made, provider):
    """Those that an adapter leaves as they are have 0, and onnxruntime reuses memory."""
    directory, models, _ = made("llama", "dynamic", dtype="float16")
    model = CausalLM(directory, providers=[provider])
    for adapter in models:
        halved = copy.deepcopy(models[adapter]).half()
        exact, rounded = (
            np.stack([expected_logits(m, *p) for p in zip(PROMPTS, CONTINUATIONS, strict=True)])
            for m in (models[adapter], halved)
        )
        # As much as float16 rounds in torch, in another order.
        assert rms(logits_of(model, adapter) - exact) <= 2 * rms(rounded - exact)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_onnxruntime_takes_the_files(made, provider):
    directory, models, _ = made("llama", "dynamic")
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(directory / "model.onnx", options, providers=[provider])
    ids = np.arange(1, 8)[None]
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": ids - 1}
    for value in session.get_inputs():
        if value.name.startswith("past"):
            feeds[value.name] = np.zeros((1, value.shape[1], 0, value.shape[3]), np.float32)
    for name, model in models.items():
        run = ort.RunOptions()
        if name is not None:
            adapter = ort.LoraAdapter()
            adapter.Load(str(directory / f"{name}.onnx_adapter"))
            run.add_active_adapter(adapter)
        with torch.no_grad():
            expected = model(torch.from_numpy(ids)).logits[0, -1].numpy()
        actual = session.run(["logits"], feeds, run)[0][0, 0]
        np.testing.assert_allclose(actual, expected, rtol=0, atol=TOLERANCE)


def test_genai_takes_the_directory(made, genai):
    directory, models, _ = made("llama", "dynamic")
    config = og.Config(str(directory))
    config.clear_providers()
    config.append_provider("NPUExecutionProvider")
    model = og.Model(config)
    adapters = og.Adapters(model)
    for name in models.keys() - {None}:
        adapters.load(str(directory / f"{name}.onnx_adapter"), name)
    continued = {}
    for name, merged in models.items():
        parameters = og.GeneratorParams(model)
        parameters.set_search_options(max_length=16, do_sample=False)
        generator = og.Generator(model, parameters)
        if name is not None:
            generator.set_active_adapter(adapters, name)
        generator.append_tokens(PROMPTS[0])
        while not generator.is_done():
            generator.generate_next_token()
        continued[name] = generator.get_sequence(0).tolist()
        expected = merged.generate(
            torch.tensor(PROMPTS[:1]), max_length=16, do_sample=False, pad_token_id=0
        )[0].tolist()
        assert continued[name][: len(expected)] == expected
    assert len({tuple(tokens) for tokens in continued.values()}) == 3


def test_command_writes_and_uses_named_adapters(tmp_path, capsys):
    folders, _ = saved(tmp_path, "llama", {"some": PLAIN})
    tiny_model("llama").save_pretrained(tmp_path / "in")
    arguments = ["export", str(tmp_path / "in"), str(tmp_path / "out"), "--no-check"]
    assert cli.main([*arguments, "--adapter", f"some={folders['some']}"]) == 0
    written = json.loads((tmp_path / "out" / "export_report.json").read_text())
    entry = written["switched_adapters"]["some"]
    assert entry["layers"] == 6 and entry["file"] == "some.onnx_adapter"
    assert (tmp_path / "out" / "some.onnx_adapter").stat().st_size == entry["bytes"]
    assert not any("lora" in value["name"] for value in written["inputs"])


def test_command_ignores_no_adapter(tmp_path, capsys):
    named = ["--adapter", "some=one", "--adapter", "some=other"]
    assert cli.main(["export", str(tmp_path), str(tmp_path / "out"), *named]) == 2
    assert "expected names of their own, got some twice" in capsys.readouterr().err
    (tmp_path / "decoder_model.onnx").touch()
    assert cli.main(["generate", str(tmp_path), "--prompt", "Hi", "--adapter", "some"]) == 2
    assert "expected a causal model, got an encoder-decoder" in capsys.readouterr().err


def test_what_cannot_be_switched_is_refused(tmp_path):
    head = {"r": 2, "lora_alpha": 2, "target_modules": ["lm_head", "up_proj"]}
    folders, _ = saved(tmp_path, "llama", {"head": head})
    out = tmp_path / "out"
    with pytest.raises(ExportError, match="lm_head is no projection of the exported model: merge"):
        export_causal_lm(tiny_model("llama"), out, switched_adapters=folders)
    with pytest.raises(
        ArgumentError, match=r"names of letters, digits, dots and dashes, got '\.\./x'"
    ):
        export_causal_lm(tiny_model("llama"), out, switched_adapters={"../x": folders["head"]})
    assert not out.exists()


def test_wrong_names_and_files_are_refused(made, tmp_path):
    directory, _, _ = made("llama", "dynamic")
    (directory / "broken.onnx_adapter").write_bytes(b"no adapter")
    other = ort.AdapterFormat()
    zeros = ort.OrtValue.ortvalue_from_numpy(np.zeros((2, 2), np.float32))
    other.set_parameters({"x": zeros})
    other.export_adapter(str(directory / "other.onnx_adapter"))
    model = CausalLM(directory)
    for name, message in {
        "none": r"expected an adapter of the directory \(all, broken, other, some\), got 'none'",
        "broken": "broken.onnx_adapter is no adapter of onnxruntime",
        "other": "other.onnx_adapter is of another model, which has x",
    }.items():
        with pytest.raises(ArgumentError, match=message):
            model.generate_tokens([[1]], max_new_tokens=1, adapter=name)
