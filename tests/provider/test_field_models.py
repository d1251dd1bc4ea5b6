"""Models from the field on the NPU alone, equal to onnxruntime's CPU provider."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
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


def decode(session: ort.InferenceSession, choose: Callable) -> list[np.ndarray]:
    """Logits of a prompt and of steps of one token each."""
    ids, past = np.array([[5, 9, 20, 7, 33]]), 0
    feeds = {
        value.name: np.zeros((1, 2, 0, 16), np.float32)
        for value in session.get_inputs()
        if value.name.startswith("past")
    }
    logits = []
    for step in range(4):
        past += ids.shape[1]
        feeds |= {"input_ids": ids, "attention_mask": np.ones((1, past), np.int64)}
        names = [value.name for value in session.get_outputs()]
        results = dict(zip(names, session.run(None, feeds), strict=True))
        logits.append(results.pop("logits"))
        feeds = {n.replace("present", "past_key_values"): v for n, v in results.items()}
        ids = choose(step)
    return logits


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["int4", "fp32"])
def test_language_model_of_genais_builder(tmp_path, precision) -> None:
    """GroupQueryAttention, SkipSimplifiedLayerNormalization, MatMulNBits."""
    tiny_llama(tmp_path / "checkpoint")
    builder = [
        sys.executable,
        "-m",
        "onnxruntime_genai.models.builder",
        "-i",
        tmp_path / "checkpoint",
    ]
    options = ["-o", tmp_path / "model", "-p", precision, "-e", "cpu", "-c", tmp_path / "cache"]
    subprocess.run([*builder, *options], check=True, capture_output=True)
    sessions = on_both(tmp_path / "model" / "model.onnx")
    expected, got = (decode(s, lambda step: np.array([[11 + step]])) for s in sessions)
    for one, other in zip(expected, got, strict=True):
        # A few hundred operations in float32, whose order differs.
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=2e-6)
